"""Tests of where the wait of each kind of collective goes, with torch.profiler as the witness."""

import json

import pytest

from tests.rank_probe.launch import Jobs, Ranks, torchrun
from tests.rank_probe.torch_hooks.collectives_job import DELAY

LOCAL = 0.03  # more than what a call itself may compute, on a machine that does other things too
KINDS = (
    "all_reduce",
    "async all_reduce",
    "future of all_reduce",
    "coalesced all_reduce",
    "barrier",
    "monitored_barrier",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "recv",
    "batch_isend_irecv",
    "all_gather_object",
    "broadcast_object_list",
    "new_group",
    "Store.get",
    "Store.wait",
    "functional all_reduce",
    "compiled all_reduce",
    "DTensor.full_tensor",
    "DTensor.redistribute",
    "clip_grad_norm_ of a DTensor",
    "tensor parallel",
    "DDP constructor",
    "DDP",
    "DDP find_unused_parameters",
    "DDP static_graph",
    "DDP bucket views",
    "DDP buffers",
    "DDP bucket rebuild",
    "DDP communication hook",
    "DDP delayed all-reduce",
    "Join",
    "ZeroRedundancyOptimizer",
    "FSDP1",
    "FSDP2",
    "pipeline",
    "collective in forward",
    "collective in backward",
    "distributed.checkpoint",
)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """What the waiting rank of a two-rank run says of each kind."""

    def call(*kinds: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("calls")
        torchrun(
            folder, "tests.rank_probe.torch_hooks.collectives_job", *kinds, ANSWERS=str(folder)
        )
        return {
            kind: {rank: answer}
            for rank in (0, 1)
            for kind, answer in json.loads((folder / f"{rank}.json").read_text()).items()
        }

    return Jobs(call)


def test_every_kind_is_listed(calls: Jobs) -> None:
    """Each kind that the ranks tried has its own test below."""
    assert sorted(calls) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_is_sync_and_nothing_else(kind: str, calls: Jobs) -> None:
    """Of a call that the profiler sees blocked by the late rank, the delay is all in `sync`.

    The ranks do not leave the barrier before it at the same moment, and a call computes a little.
    """

    def check(ranks: Ranks) -> None:
        (answer,) = ranks.values()
        outside = answer["span"] - answer["stages"]["sync"]

        assert answer["span"] >= 0.9 * DELAY, "the profiler saw nobody wait"
        assert answer["stages"]["sync"] >= 0.95 * (answer["span"] - LOCAL)
        assert outside < LOCAL
        for stage, seconds in answer["stages"].items():
            assert stage == "sync" or seconds < LOCAL, stage

    calls.check(kind, check)

"""Tests of where the wait of each kind of collective goes, with torch.profiler as the witness."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rank_probe.collectives_job import DELAY

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
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
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the waiting rank of a two-rank run says of each kind."""
    folder = tmp_path_factory.mktemp("answers")
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", "-m", "tests.rank_probe.collectives_job"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ANSWERS": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return dict(found[0] | found[1])


def test_every_kind_is_listed(answers: dict[str, dict[str, Any]]) -> None:
    """Each kind that the ranks tried has its own test below."""
    assert sorted(answers) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_is_sync_and_nothing_else(kind: str, answers: dict[str, dict[str, Any]]) -> None:
    """Of a call that the profiler sees blocked by the late rank, the delay is all in `sync`.

    The ranks do not leave the barrier before it at the same moment, and a call computes a little.
    """
    answer = answers[kind]
    outside = answer["span"] - answer["stages"]["sync"]

    assert answer["span"] >= 0.9 * DELAY, "the profiler saw nobody wait"
    assert answer["stages"]["sync"] >= 0.95 * (answer["span"] - LOCAL)
    assert outside < LOCAL
    for stage, seconds in answer["stages"].items():
        assert stage == "sync" or seconds < LOCAL, stage

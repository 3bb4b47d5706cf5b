"""Tests of where the wait of each kind of collective goes, with torch.profiler as the witness."""

import json

import pytest

from tests.rank_probe.launch import Jobs, Ranks, torchrun
from tests.rank_probe.torch_hooks.collectives_job import DELAY

pytestmark = pytest.mark.jobs

LOCAL = 0.03  # more than what a call itself may compute, on a machine that does other things too
KINDS = 44


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


def check(ranks: Ranks) -> None:
    """The ranks do not leave the barrier before it at the same moment, and a call computes."""
    (answer,) = ranks.values()
    outside = answer["span"] - answer["stages"]["sync"]

    assert answer["span"] >= 0.9 * DELAY, "the profiler saw nobody wait"
    assert answer["stages"]["sync"] >= 0.95 * (answer["span"] - LOCAL)
    assert outside < LOCAL
    for stage, seconds in answer["stages"].items():
        assert stage == "sync" or seconds < LOCAL, stage


def test_waiting_is_sync_and_nothing_else(calls: Jobs) -> None:
    """Of a call that the profiler sees blocked by the late rank, the delay is all in `sync`."""
    assert len(calls) == KINDS
    wrong = {}
    for kind in calls:
        try:
            calls.check(kind, check)
        except AssertionError as error:
            wrong[kind] = str(error)

    assert not wrong

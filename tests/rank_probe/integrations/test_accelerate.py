"""Tests of the Accelerate integration, on Accelerate itself with two gloo ranks."""

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, torchrun

pytestmark = pytest.mark.jobs

BATCHES, DELAY, HEALTHY = 6, 0.08, 0.004
# How often the late rank was slow before the last release; the case's name is its stage's.
# The last release is that of the last evaluation's gather; the checkpoint after it is in no step.
# In `eval` and `checkpoint` it is twice as late.
TIMES_LATE = {
    "data": BATCHES,
    "forward": BATCHES,
    "backward": BATCHES,
    "optimizer": BATCHES,
    "other": BATCHES,
    "eval": 2 * 3,
    "checkpoint": 2 * 2,
}
OTHERS = ("accumulate", "dispatch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One process a rank that trains every case in turn."""

    def train(*cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("runs")
        return torchrun(folder, f"{PACKAGE}.accelerate_job", *cases, CHECKPOINTS=str(folder))

    return Jobs(train, *TIMES_LATE, *OTHERS)


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(runs: Jobs, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    runs.check(case, is_late(1, case, TIMES_LATE[case] * DELAY))


def test_every_batch_is_a_step_and_every_run_ends_cleanly(runs: Jobs) -> None:
    """Attaching starts the probe anew, detaching finishes it, and nothing of ours fails."""
    for case in TIMES_LATE:
        for rank in runs[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_accumulated_batches_are_one_step(runs: Jobs) -> None:
    """Under `accumulate` a step ends with the optimizer's, not with each batch."""
    assert {rank["steps"] for rank in runs["accumulate"].values()} == {BATCHES // 2}
    runs.check("accumulate", is_late(1, "data", BATCHES * DELAY))


def test_dispatched_batches_are_waited_for(runs: Jobs) -> None:
    """Where rank 0 reads for all, its reading is `data` and what the others wait is `sync`."""
    runs.check("dispatch", is_late(0, "data", 2 * BATCHES * (DELAY + HEALTHY)))

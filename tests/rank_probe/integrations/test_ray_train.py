"""Tests of the Ray Train integration, on a real local cluster with two gloo ranks."""

from tempfile import TemporaryDirectory

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, run

# A cluster takes a minute to start, and half of the processors meanwhile.
pytestmark = [pytest.mark.jobs, pytest.mark.nightly]

STEPS = 7
EVERY = 3  # steps between checkpoints
DELAY = 0.15
# How often the late rank was slow before the last release; the case's name is its stage's.
TIMES_LATE = {
    "data": STEPS,
    "forward": STEPS,
    "backward": STEPS,
    "optimizer": STEPS - 1,
    "other": STEPS - 1,
    "checkpoint": STEPS // EVERY,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One cluster that trains once for every case."""

    def train(*cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("runs")
        # Not in there: the path of a socket has to be short.
        with TemporaryDirectory(prefix="ray") as short:
            return run(folder, ["-m", f"{PACKAGE}.ray_train_job", short, *cases])

    return Jobs(train, *TIMES_LATE, "barrier", "raises", "off")


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(runs: Jobs, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`.

    Every other report is such a wait: it is a barrier.
    """
    runs.check(case, is_late(1, case, TIMES_LATE[case] * DELAY))


def test_every_batch_is_a_step_and_every_run_ends_cleanly(runs: Jobs) -> None:
    """The first one is called as its run is; nothing of ours fails in any."""
    for case in TIMES_LATE:
        for number, rank in runs[case].items():
            assert rank["steps"] == STEPS
            assert rank["finished"]
            assert rank["probe_errors"] == 0
            assert rank["rank_info"]["local_rank"] == str(number)


def test_barrier_of_ray_is_a_release(runs: Jobs) -> None:
    """Waiting in it is `sync`, and what precedes the last one is in the last step."""
    runs.check("barrier", is_late(1, "other", STEPS * DELAY))


def test_exception_leaves_no_clean_end(runs: Jobs) -> None:
    """It passes through; a worker that raised is not marked finished."""
    assert not any(rank["finished"] for rank in runs.get("raises", {}).values())


def test_turned_off_it_sends_nothing(runs: Jobs) -> None:
    """With RANK_PROBE=0 the training function runs as it is."""
    assert "off" not in runs

"""Tests of the DeepSpeed integration, on real engines with two gloo ranks."""

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, torchrun

pytestmark = pytest.mark.jobs

STEPS, ACCUMULATED = 7, 2
EVERY = 3  # steps between checkpoints
DELAY = 0.15
TIMES_LATE = {
    "data": STEPS,
    "forward": STEPS,
    "backward": STEPS,
    "optimizer": STEPS,
    "other": STEPS - 1,
    "checkpoint": STEPS // EVERY,
}
CASES = [f"zero{level}-{stage}" for level in (0, 1, 2) for stage in TIMES_LATE]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One process a rank that trains once for every case."""

    def train(*cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("runs")
        return torchrun(folder, f"{PACKAGE}.deepspeed_job", f"{folder}/out", *cases)

    return Jobs(train, *CASES, "zero0-off")


@pytest.mark.parametrize("case", CASES)
def test_late_rank_and_its_stage_are_told(runs: Jobs, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    _, stage = case.split("-")
    times = TIMES_LATE[stage]
    if case == "zero0-optimizer":  # Without ZeRO nothing is exchanged after the last update.
        times -= 1
    runs.check(case, is_late(1, stage, times * DELAY))


def test_accumulated_batches_are_one_step_and_training_ends_cleanly(
    runs: Jobs,
) -> None:
    """Each training starts the probe anew and finishes it, and nothing of ours fails meanwhile."""
    for ranks in runs.values():
        for rank in ranks.values():
            assert rank["steps"] == STEPS
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_what_the_engine_does_itself_has_a_stage(runs: Jobs) -> None:
    """Flattening and averaging gradients is backward, and partitioning the update optimizer."""

    def check(ranks: Ranks) -> None:
        for rank in ranks.values():
            assert rank["stage_seconds"]["other"] < rank["stage_seconds"]["backward"]

    for case in CASES:
        if not case.endswith("other"):
            runs.check(case, check)


def test_turned_off_it_sends_nothing(runs: Jobs) -> None:
    """With RANK_PROBE=0 attach and detach do nothing at all."""
    assert "zero0-off" not in runs

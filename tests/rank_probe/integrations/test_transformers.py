"""Tests of the Hugging Face callback, on the real Trainer with two gloo ranks."""

from pathlib import Path

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, torchrun

pytestmark = pytest.mark.jobs

STEPS, ACCUMULATED, ROWS, LENGTH, PADDING = 7, 2, 2, 16, 4
EVERY = 2  # steps between evaluations, and between checkpoints
DELAY = 0.15
# How often the late rank was slow before the last release; the case's name is its stage's.
TIMES_LATE = {
    "data": STEPS,
    "forward": STEPS,
    "backward": STEPS,
    "optimizer": STEPS - 1,
    "other": STEPS - 1,
    "eval": STEPS // EVERY,
    "checkpoint": 2 * (STEPS // EVERY),  # twice as late: the first rank writes more
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One process a rank that trains once for every case."""

    def train(*cases: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("runs")
        return torchrun(folder, f"{PACKAGE}.transformers_job", f"{folder}/out", *cases)

    return Jobs(train, *TIMES_LATE, "launched", "unchanged", "off")


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(runs: Jobs, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    runs.check(case, is_late(1, case, TIMES_LATE[case] * DELAY))


def test_accumulated_batches_are_one_step_and_training_ends_cleanly(
    runs: Jobs,
) -> None:
    """Each training starts the probe anew and finishes it, and nothing of ours fails meanwhile."""
    for case in TIMES_LATE:
        for rank in runs[case].values():
            assert rank["steps"] == STEPS
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_work_units_come_from_the_attention_mask(runs: Jobs) -> None:
    """Rows, tokens and padding of the training batches are counted; evaluation's are not."""
    rows = STEPS * ACCUMULATED * ROWS
    for rank in runs["data"].values():
        assert rank["samples"] == rows
        assert rank["tokens"] == rows * LENGTH
        assert rank["padding_tokens"] == rows * PADDING


def test_probe_that_a_launcher_started_goes_on(runs: Jobs) -> None:
    """Under `-m rank_probe` the script may go on after training, so the end is the launcher's."""
    for rank in runs["launched"].values():
        assert rank["steps"] == STEPS
        assert not rank["finished"]


def test_saves_of_an_unchanged_script_are_checkpoint(runs: Jobs) -> None:
    """Without the callback, and whatever in them takes long: not all of it is torch.save."""
    times = TIMES_LATE["checkpoint"] + 2  # The ranks meet after the last one.
    runs.check("unchanged", is_late(1, "checkpoint", times * DELAY))


def test_turned_off_it_sends_nothing(runs: Jobs) -> None:
    """With RANK_PROBE=0 the callback does nothing at all."""
    assert "off" not in runs


def test_forward_is_told_without_ddp(tmp_path: Path) -> None:
    """Also of accumulated batches, and of the last one of an epoch, after a loader at its end."""
    alone = torchrun(tmp_path, f"{PACKAGE}.transformers_job", f"{tmp_path}/out", "forward", ranks=1)
    # Without the callback half of it is `other`.
    assert alone["forward"][0]["stage_seconds"]["forward"] > STEPS * DELAY

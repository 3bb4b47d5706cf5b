"""Tests of the Lightning callback, on Lightning itself with two gloo ranks."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.rank_probe.launch import PACKAGE, Jobs, Ranks, is_late, run

pytestmark = pytest.mark.jobs

BATCHES, ROWS, TOKENS, PADDING = 6, 4, 256, 64  # of each batch, as lightning_job.py makes them
DELAY = 0.08
# How often the late rank was slow before the last release; the case's name is its stage's.
# What comes after the last backward is in no whole step. In `eval` and `checkpoint` it is twice as
# late.
TIMES_LATE = {
    "data": BATCHES,
    "forward": BATCHES,
    "backward": BATCHES,
    "optimizer": BATCHES - 1,
    "other": BATCHES - 1,
    "eval": 2 * 3,  # the sanity check, and after the second and the fourth batch
    "checkpoint": 2 * 2,
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
OTHERS = ("streamed", "accumulate", "two_evaluations", "two_optimizers", "raises")


def train(folder: Path, launcher: Sequence[str], package: str, *cases: str) -> dict[str, Ranks]:
    """Train each of *cases* with *package*; return each rank's last snapshot, by case."""
    job = ["-m", f"{PACKAGE}.lightning_job", package, *cases]
    return run(folder, [*launcher, *job], RANKSKEW_JOB_ID=cases[0], CHECKPOINTS=str(folder))


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """One process a rank that fits every case in turn, each with a callback of its own."""

    def fit(*cases: str) -> dict[str, Ranks]:
        return train(tmp_path_factory.mktemp("fits"), TORCHRUN, "lightning.pytorch", *cases)

    return Jobs(fit, *TIMES_LATE, *OTHERS)


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(fits: Jobs, case: str) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    fits.check(case, is_late(1, case, TIMES_LATE[case] * DELAY))


def test_every_batch_is_a_step_and_every_fit_ends_cleanly(fits: Jobs) -> None:
    """A fit starts the probe anew and finishes it, and nothing of ours fails meanwhile."""
    for case in TIMES_LATE:
        for rank in fits[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_work_units_come_from_the_batch(fits: Jobs) -> None:
    """Rows, tokens and padding of the training batches are counted; validation's are not."""
    for rank in fits["data"].values():
        assert rank["samples"] == BATCHES * ROWS
        assert rank["tokens"] == BATCHES * TOKENS
        assert rank["padding_tokens"] == BATCHES * PADDING


def test_closure_is_not_the_optimizer(fits: Jobs) -> None:
    """Forward within an optimizer's step is `forward` each time, also after a prefetched end."""
    fits.check("two_evaluations", is_late(1, "forward", 2 * BATCHES * DELAY))
    fits.check("streamed", is_late(1, "forward", BATCHES * DELAY))


def test_accumulated_batches_are_one_step(fits: Jobs) -> None:
    """A step ends with the optimizer's, not with each batch."""
    assert {rank["steps"] for rank in fits["accumulate"].values()} == {BATCHES // 2}
    fits.check("accumulate", is_late(1, "forward", BATCHES * DELAY))


def test_two_optimizers_are_one_step(fits: Jobs) -> None:
    """A batch that several optimizers train on is one step, after the first such batch."""
    assert {rank["steps"] for rank in fits["two_optimizers"].values()} == {BATCHES}
    fits.check("two_optimizers", is_late(1, "forward", 2 * BATCHES * DELAY))


def test_exception_passes_and_leaves_no_clean_end(fits: Jobs) -> None:
    """A fit that raised is not marked finished, and a later fit is timed as ever."""
    assert not any(rank["finished"] for rank in fits["raises"].values())


def test_other_package_and_its_own_launcher(tmp_path: Path) -> None:
    """pytorch_lightning takes the callback too, and ranks that Lightning starts know themselves."""
    fits = Jobs(partial(train, tmp_path, (), "pytorch_lightning"), "forward")

    fits.check("forward", is_late(1, "forward", BATCHES * DELAY))


def test_probe_of_the_launcher_is_taken_over(tmp_path: Path) -> None:
    """Under `-m rank_probe` the callback adds its stages, and a fit's end is not the rank's."""
    launcher = (*TORCHRUN, "-m", "rank_probe")
    fits = Jobs(partial(train, tmp_path, launcher, "lightning.pytorch", "eval"), "eval")

    # The evaluation after the first fit's last step is in the second fit's first one.
    times = 2 * (TIMES_LATE["eval"] + 1)
    fits.check("eval", is_late(1, "eval", times * DELAY))
    ranks = fits["eval"].values()
    assert {(rank["steps"], rank["finished"]) for rank in ranks} == {(2 * BATCHES, True)}

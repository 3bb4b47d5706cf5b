"""Tests of the Lightning callback, on Lightning itself with two gloo ranks."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rank_probe.sink import listening

ROOT = Path(__file__).parents[3]
BATCHES, ROWS, TOKENS, PADDING = 6, 4, 256, 64  # of each batch, as lightning_job.py makes them
DELAY = 0.08
# How often the late rank was slow before the last release; the case's name is its stage's.
# What comes after the last backward is in no whole step.
TIMES_LATE = {
    "data": BATCHES,
    "forward": BATCHES,
    "backward": BATCHES,
    "optimizer": BATCHES - 1,
    "other": BATCHES - 1,
    "eval": 3,  # the sanity check, and after the second and the fourth batch
    "checkpoint": 2,
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
OTHERS = ("streamed", "accumulate", "two_evaluations", "two_optimizers", "raises")

Ranks = Mapping[int, dict[str, Any]]


def train(
    folder: Path, launcher: Sequence[str], package: str, *cases: str
) -> dict[str, dict[int, dict[str, Any]]]:
    """Train each of *cases* with *package*; return each one's last snapshots by rank."""
    job = ["-m", "tests.rank_probe.integrations.lightning_job", package, *cases]
    with listening(folder / "s") as sink:
        done = subprocess.run(
            [sys.executable, *launcher, *job],
            cwd=ROOT,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": f"unix:{folder}/s"}
            | {"RANKSKEW_JOB_ID": cases[0], "CHECKPOINTS": str(folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    last: dict[str, dict[int, dict[str, Any]]] = {case: {} for case in cases}
    for snapshot in sink.snapshots:
        last[snapshot["job_id"]][snapshot["rank"]] = snapshot
    return last


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, dict[str, Any]]]:
    """One process a rank that fits every case in turn, each with a callback of its own."""
    folder = tmp_path_factory.mktemp("fits")
    return train(folder, TORCHRUN, "lightning.pytorch", *TIMES_LATE, *OTHERS)


def assert_late(ranks: Ranks, stage: str, seconds: float) -> None:
    """The second rank is late by *seconds* in *stage*, and the first one waited for it."""
    victim, late = ranks[0]["stage_seconds"], ranks[1]["stage_seconds"]
    excess = {name: late[name] - victim[name] for name in late}

    assert max(excess, key=lambda name: excess[name]) == stage
    assert excess[stage] == pytest.approx(seconds, rel=0.15)
    assert victim["sync"] - late["sync"] == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(
    fits: dict[str, dict[int, dict[str, Any]]], case: str
) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    assert_late(fits[case], case, TIMES_LATE[case] * DELAY)


def test_every_batch_is_a_step_and_every_fit_ends_cleanly(
    fits: dict[str, dict[int, dict[str, Any]]],
) -> None:
    """A fit starts the probe anew and finishes it, and nothing of ours fails meanwhile."""
    for case in TIMES_LATE:
        for rank in fits[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_work_units_come_from_the_batch(fits: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Rows, tokens and padding of the training batches are counted; validation's are not."""
    for rank in fits["data"].values():
        assert rank["samples"] == BATCHES * ROWS
        assert rank["tokens"] == BATCHES * TOKENS
        assert rank["padding_tokens"] == BATCHES * PADDING


def test_closure_is_not_the_optimizer(fits: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Forward within an optimizer's step is `forward` each time, also after a prefetched end."""
    assert_late(fits["two_evaluations"], "forward", 2 * BATCHES * DELAY)
    assert_late(fits["streamed"], "forward", BATCHES * DELAY)


def test_accumulated_batches_are_one_step(fits: dict[str, dict[int, dict[str, Any]]]) -> None:
    """A step ends with the optimizer's, not with each batch."""
    assert {rank["steps"] for rank in fits["accumulate"].values()} == {BATCHES // 2}
    assert_late(fits["accumulate"], "forward", BATCHES * DELAY)


def test_two_optimizers_are_one_step(fits: dict[str, dict[int, dict[str, Any]]]) -> None:
    """A batch that several optimizers train on is one step, after the first such batch."""
    assert {rank["steps"] for rank in fits["two_optimizers"].values()} == {BATCHES}
    assert_late(fits["two_optimizers"], "forward", 2 * BATCHES * DELAY)


def test_exception_passes_and_leaves_no_clean_end(
    fits: dict[str, dict[int, dict[str, Any]]],
) -> None:
    """A fit that raised is not marked finished, and a later fit is timed as ever."""
    assert not any(rank["finished"] for rank in fits["raises"].values())


def test_other_package_and_its_own_launcher(tmp_path: Path) -> None:
    """pytorch_lightning takes the callback too, and ranks that Lightning starts know themselves."""
    ranks = train(tmp_path, (), "pytorch_lightning", "forward")["forward"]

    assert_late(ranks, "forward", BATCHES * DELAY)


def test_probe_of_the_launcher_is_taken_over(tmp_path: Path) -> None:
    """Under `-m rank_probe` the callback adds its stages, and a fit's end is not the rank's."""
    launcher = (*TORCHRUN, "-m", "rank_probe")
    ranks = train(tmp_path, launcher, "lightning.pytorch", "eval", "eval")["eval"]
    late, victim = ranks[1]["stage_seconds"], ranks[0]["stage_seconds"]

    # The evaluation after the first fit's last step is in the second fit's first one.
    times = 2 * TIMES_LATE["eval"] + 1
    assert late["eval"] - victim["eval"] == pytest.approx(times * DELAY, rel=0.15)
    assert {(rank["steps"], rank["finished"]) for rank in ranks.values()} == {(2 * BATCHES, True)}

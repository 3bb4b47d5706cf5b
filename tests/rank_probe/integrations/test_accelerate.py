"""Tests of the Accelerate integration, on Accelerate itself with two gloo ranks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rank_probe.sink import listening

ROOT = Path(__file__).parents[3]
BATCHES, DELAY, HEALTHY = 6, 0.08, 0.004
# How often the late rank was slow before the last release; the case's name is its stage's.
# The last release is that of the last evaluation's gather; the checkpoint after it is in no step.
TIMES_LATE = {
    "data": BATCHES,
    "forward": BATCHES,
    "backward": BATCHES,
    "optimizer": BATCHES,
    "other": BATCHES,
    "eval": 3,
    "checkpoint": 2,
}
OTHERS = ("accumulate", "dispatch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, dict[str, Any]]]:
    """One process a rank that trains every case in turn: each one's last snapshots by rank."""
    folder = tmp_path_factory.mktemp("runs")
    job = ["-m", "tests.rank_probe.integrations.accelerate_job", *TIMES_LATE, *OTHERS]
    with listening(folder / "s") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *job],
            cwd=ROOT,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "CHECKPOINTS": str(folder)}
            | {"RANKSKEW_EXPORTER": f"unix:{folder}/s"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    last: dict[str, dict[int, dict[str, Any]]] = {case: {} for case in (*TIMES_LATE, *OTHERS)}
    for snapshot in sink.snapshots:
        last[snapshot["job_id"]][snapshot["rank"]] = snapshot
    return last


def assert_late(ranks: dict[int, dict[str, Any]], rank: int, stage: str, seconds: float) -> None:
    """*rank* is late by *seconds* in *stage*, and the other one waited for it."""
    late, victim = ranks[rank]["stage_seconds"], ranks[1 - rank]["stage_seconds"]
    excess = {name: late[name] - victim.get(name, 0.0) for name in late}

    assert max(excess, key=lambda name: excess[name]) == stage
    assert excess[stage] == pytest.approx(seconds, rel=0.15)
    assert victim["sync"] - late["sync"] == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("case", sorted(TIMES_LATE))
def test_late_rank_and_its_stage_are_told(
    runs: dict[str, dict[int, dict[str, Any]]], case: str
) -> None:
    """The delay is in its own stage on the late rank, and the other's extra time is `sync`."""
    assert_late(runs[case], 1, case, TIMES_LATE[case] * DELAY)


def test_every_batch_is_a_step_and_every_run_ends_cleanly(
    runs: dict[str, dict[int, dict[str, Any]]],
) -> None:
    """Attaching starts the probe anew, detaching finishes it, and nothing of ours fails."""
    for case in TIMES_LATE:
        for rank in runs[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_accumulated_batches_are_one_step(runs: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Under `accumulate` a step ends with the optimizer's, not with each batch."""
    assert {rank["steps"] for rank in runs["accumulate"].values()} == {BATCHES // 2}
    assert_late(runs["accumulate"], 1, "data", BATCHES * DELAY)


def test_dispatched_batches_are_waited_for(runs: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Where rank 0 reads for all, its reading is `data` and what the others wait is `sync`."""
    assert_late(runs["dispatch"], 0, "data", 2 * BATCHES * (DELAY + HEALTHY))

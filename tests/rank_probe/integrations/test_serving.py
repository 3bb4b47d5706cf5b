"""Tests of the probe in a loop that serves batches, with two gloo ranks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rank_probe.sink import listening

ROOT = Path(__file__).parents[3]
BATCHES, DELAY = 20, 0.04
CASES = ("sharded", "idle", "independent")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, dict[str, Any]]]:
    """One process a rank that serves every case in turn: each one's last snapshots by rank."""
    folder = tmp_path_factory.mktemp("served")
    job = ["-m", "tests.rank_probe.integrations.serving_job", *CASES]
    with listening(folder / "s") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *job],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": f"unix:{folder}/s"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    last: dict[str, dict[int, dict[str, Any]]] = {case: {} for case in CASES}
    for snapshot in sink.snapshots:
        last[snapshot["job_id"]][snapshot["rank"]] = snapshot
    return last


def test_every_batch_is_a_step(served: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Without an optimizer a step is what `step` says it is."""
    for case in CASES:
        for rank in served[case].values():
            assert rank["steps"] == BATCHES
            assert rank["finished"]
            assert rank["probe_errors"] == 0


def test_slow_shard_is_told_from_the_one_that_waits(
    served: dict[str, dict[int, dict[str, Any]]],
) -> None:
    """Batches of unequal length cost both shards the same, so only the slow one stands out."""
    victim, late = (served["sharded"][rank]["stage_seconds"] for rank in (0, 1))

    assert late["compute"] - victim["compute"] == pytest.approx(BATCHES * DELAY, rel=0.1)
    assert victim["sync"] - late["sync"] == pytest.approx(BATCHES * DELAY, rel=0.1)


def test_idle_queue_blames_nobody(served: dict[str, dict[int, dict[str, Any]]]) -> None:
    """The rank that takes requests in waits for them in `sync`, as the others wait for it."""
    first, second = (served["idle"][rank]["stage_seconds"] for rank in (0, 1))

    assert first["sync"] > BATCHES * DELAY
    for stage in ("sync", "compute"):
        assert second[stage] == pytest.approx(first[stage], abs=0.1 * BATCHES * DELAY)


def test_independent_replicas_have_no_wait_to_judge_by(
    served: dict[str, dict[int, dict[str, Any]]],
) -> None:
    """Replicas that wait for nobody show what each batch costs, and no `sync` at all."""
    for rank in served["independent"].values():
        assert "compute" in rank["stage_seconds"]
        assert "sync" not in rank["stage_seconds"]

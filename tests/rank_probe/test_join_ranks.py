"""The join on real ranks over gloo: who is late and what it costs, and nobody is disturbed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from exporter.skew import charge
from rank_probe.stages import STAGES
from tests.rank_probe.join_job import DELAY, LATE_RANK, LATE_STAGE, STEPS

ROOT = Path(__file__).parents[2]
RANKS = 4


def start(port: int, answers: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """Start the ranks; their store is at *port*."""
    command = [sys.executable, "-m", "tests.rank_probe.join_job", str(port), str(answers)]
    world = {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    world["RANKSKEW_EXPORTER"] = f"unix:{answers}/nobody"
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | world | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def end(ranks: list[subprocess.Popen[str]], answers: Path) -> list[dict[str, Any]]:
    """Wait for the ranks, which must end well; return their answers."""
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=60)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in range(len(ranks))]


def serving() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def caused_by_reference(answers: list[dict[str, Any]]) -> dict[tuple[int, str], float]:
    """Return the GPU-seconds a second on each rank's account, from all ranks' step vectors."""
    # The join begins after the first step.
    steps = list(zip(*(answer["vectors"][1:] for answer in answers), strict=True))
    caused: dict[tuple[int, str], float] = {}
    seconds = 0.0
    for ranks in steps:
        assert len({number for number, _, _ in ranks}) == 1
        stages = {
            rank: {stage: each / 1e9 for stage, each in zip(STAGES, spent, strict=True)}
            for rank, (_, _, spent) in enumerate(ranks)
        }
        for key, share in charge(stages, {}).caused.items():
            caused[key] = caused.get(key, 0.0) + share
        seconds += sum(stages[0].values())
    return {key: share / seconds for key, share in caused.items()}


def test_late_rank_learns_what_it_costs(tmp_path: Path) -> None:
    """Rank and stage get the cost of the reference, all steps count, and no key is left."""
    store = serving()
    answers = end(start(store.port, tmp_path, RANKS), tmp_path)
    expected = caused_by_reference(answers)
    snapshots = [answer["snapshot"] for answer in answers]
    lost = [
        {
            stage: each / snapshot["joined_seconds"]
            for stage, each in snapshot["wait_caused_seconds"].items()
        }
        for snapshot in snapshots
    ]

    late = expected[LATE_RANK, LATE_STAGE]
    assert late > 0.5 * (RANKS - 1) * DELAY / (DELAY + 0.05)
    assert lost[LATE_RANK][LATE_STAGE] == pytest.approx(late, rel=0.1)
    assert snapshots[LATE_RANK]["paced_steps"][LATE_STAGE] > 0.8 * (STEPS - 1)
    assert all(
        sum(each.values()) < 0.1 * late for rank, each in enumerate(lost) if rank != LATE_RANK
    )
    for snapshot in snapshots:
        assert snapshot["join_coverage"] > 0.9
        assert snapshot["probe_errors"] == 0
        assert snapshot["group_wait_seconds"] is None
        occurred = snapshot["stage_seconds"].keys() - {"sync"}
        assert snapshot["paced_steps"].keys() == snapshot["wait_caused_seconds"].keys()
        assert snapshot["paced_steps"].keys() == occurred
    assert [key for key in store.list_keys() if "rankskew" in key] == []
    assert any("job" in key for key in store.list_keys())


def test_store_that_dies_ends_the_join_alone(tmp_path: Path) -> None:
    """Without the store the steps go on to the last one; the coverage says that none is joined."""
    store = serving()
    ranks = start(store.port, tmp_path, 2)
    until = time.monotonic() + 60
    while not (tmp_path / "half").exists() and time.monotonic() < until:
        time.sleep(0.02)
    del store
    snapshots = [answer["snapshot"] for answer in end(ranks, tmp_path)]

    assert [snapshot["steps"] for snapshot in snapshots] == [STEPS] * 2
    assert [snapshot["join_coverage"] for snapshot in snapshots] == [0] * 2
    assert [snapshot["probe_errors"] for snapshot in snapshots] == [0] * 2
    assert all(snapshot["joined_seconds"] > 0 for snapshot in snapshots)

"""The join on real ranks over gloo: who is late and what it costs, and nobody is disturbed."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from rank_probe.wire.stages import STAGES
from rankskew.accounting.step import charge
from tests.rank_probe.forks import Fork, Zygote
from tests.rank_probe.join.join_job import DELAY, LATE_RANK, LATE_STAGE, STEPS

pytestmark = pytest.mark.jobs

RANKS = 4

Account = tuple[int, str]  # a rank and its stage


def start(zygote: Zygote, port: int, answers: Path, ranks: int, *options: str) -> list[Fork]:
    """Start the ranks; their store is at *port*."""
    known = {"WORLD_SIZE": str(ranks), "RANKSKEW_EXPORTER": f"unix:{answers}/nobody"}
    arguments = ("tests.rank_probe.join.join_job", str(port), str(answers), *options)
    return [
        zygote.start(answers / f"output-{rank}", *arguments, **known, RANK=str(rank))
        for rank in range(ranks)
    ]


def end(ranks: list[Fork], answers: Path) -> list[dict[str, Any]]:
    """Wait for the ranks, which must end well; return their answers."""
    assert [rank.wait(60) for rank in ranks] == [0] * len(ranks)
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in range(len(ranks))]


def serving() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def reference(answers: list[dict[str, Any]]) -> Mapping[Account, float]:
    """Return the GPU-seconds a second on each account, from all vectors."""
    # The join begins after the first step.
    steps = list(zip(*(answer["vectors"][1:] for answer in answers), strict=True))
    caused: dict[Account, float] = defaultdict(float)
    seconds = 0.0
    for ranks in steps:
        assert len({number for number, _, _ in ranks}) == 1
        stages = {
            rank: {stage: each / 1e9 for stage, each in zip(STAGES, spent, strict=True)}
            for rank, (_, _, spent) in enumerate(ranks)
        }
        charges = charge(stages, {})
        for account, share in charges.caused.items():
            caused[account] += share
        seconds += sum(stages[0].values())
    return {account: share / seconds for account, share in caused.items()}


def test_late_rank_learns_what_it_costs(zygote: Zygote, tmp_path: Path) -> None:
    """Rank and stage get the cost of the reference, all steps count, and no key is left."""
    store = serving()
    answers = end(start(zygote, store.port, tmp_path, RANKS), tmp_path)
    caused = reference(answers)
    snapshots = [answer["snapshot"] for answer in answers]

    late = caused[LATE_RANK, LATE_STAGE]
    assert late > 0.5 * (RANKS - 1) * DELAY / (DELAY + 0.05)
    for rank, snapshot in enumerate(snapshots):
        for stage, seconds in snapshot["wait_caused_seconds"].items():
            lost = seconds / snapshot["joined_seconds"]
            assert lost == pytest.approx(caused.get((rank, stage), 0), abs=0.05 * late), stage
        assert snapshot["join_coverage"] > 0.9
        assert snapshot["probe_errors"] == 0
        assert snapshot["group_wait_seconds"] is None
        occurred = snapshot["stage_seconds"].keys() - {"sync"}
        assert snapshot["wait_caused_seconds"].keys() == occurred
    assert [key for key in store.list_keys() if "rankskew" in key] == []
    assert any("job" in key for key in store.list_keys())


def test_store_that_dies_ends_the_join_alone(zygote: Zygote, tmp_path: Path) -> None:
    """Without the store the steps go on to the last one; the coverage says that none is joined."""
    store = serving()
    ranks = start(zygote, store.port, tmp_path, 2, "halt")
    until = time.monotonic() + 60
    while not (tmp_path / "half").exists() and time.monotonic() < until:
        time.sleep(0.02)
    del store
    (tmp_path / "go").touch()
    snapshots = [answer["snapshot"] for answer in end(ranks, tmp_path)]

    assert [snapshot["steps"] for snapshot in snapshots] == [STEPS] * 2
    assert [snapshot["join_coverage"] for snapshot in snapshots] == [0] * 2
    assert [snapshot["probe_errors"] for snapshot in snapshots] == [0] * 2
    assert all(snapshot["joined_seconds"] > 0 for snapshot in snapshots)

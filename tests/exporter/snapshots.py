"""Snapshots for tests: one valid default, changed where a test needs it."""

from dataclasses import replace
from typing import Any, Final

from rank_probe.judge.verdict import LATE_KINDS, PERSISTENT, Change, Late, Verdict
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES

DEFAULT: Final = Snapshot(
    job_id="llama",
    peer_group="all",
    rank=0,
    world_size=4,
    attempt=0,
    pid=4711,
    started_timestamp_seconds=1_000.0,
    sequence=1,
    heartbeat_timestamp_seconds=1_060.5,
    steps=100,
    stage_seconds={"data": 12.5, "forward": 20.0, "sync": 5.0},
    busy_seconds=32.5,
    stage="forward",
    stage_elapsed_seconds=0.25,
)


def snapshot(**changes: Any) -> Snapshot:
    """Return the default snapshot with *changes*."""
    return replace(DEFAULT, **changes)


LATE: Final = Late(
    rank=2,
    peer_group="all",
    stage="data",
    kind=PERSISTENT,
    ratio=0.45,
    gpus={"data": 0.75, "forward": 0.25},
    since_seconds=30.0,
    steps=60,
    confidence=4.5,
)

CHANGE: Final = Change(peer_group="pp1", stage="forward", ratio=2.0, since_seconds=300.0)

VERDICT: Final = Verdict(
    step=1_200,
    ranks={"all": 4},
    step_seconds=0.5,
    slowdown=1.44,
    gpus_lost={"group": 0.0, "persistent": 1.0, "rotating": 0.25, "common": 0.5},
    rotating={"data": 0.25},
    late=(LATE,),
)


def verdict(**changes: Any) -> dict[str, Any]:
    """Return the default verdict (rank 2 of 4 is late in data) with *changes*, as it travels."""
    return replace(VERDICT, **changes).to_json()


def late(**changes: Any) -> Late:
    """Return the default late rank with *changes*."""
    return replace(LATE, **changes)


def numbered(text: str) -> list[tuple[int, list[str]]]:
    """Return each rank of `RANK[-LAST] WORD ...; ...` with its words."""
    found = []
    for each in filter(None, text.split("; ")):
        ranks, *words = each.split()
        first, _, last = ranks.partition("-")
        found += [(rank, words) for rank in range(int(first), int(last or first) + 1)]
    return found


def lates(text: str) -> tuple[Late, ...]:
    """Return the late ranks of `RANK[-LAST] [KIND] [STAGE] [gpus=..] [every=..] ...; ...`."""
    found = []
    for rank, words in numbered(text):
        known = {
            name: float(value) for name, _, value in (w.partition("=") for w in words) if value
        }
        stage = next((word for word in words if word in STAGES), "data")
        changes = {
            "rank": rank,
            "kind": next((word for word in words if word in LATE_KINDS), PERSISTENT),
            "stage": stage,
            "gpus": {stage: known.get("gpus", 1.0)},
            "ratio": known.get("ratio", LATE.ratio),
            "every_steps": int(known.get("every", 0)),
            "pause_seconds": known.get("pause", 0.0),
            "has_risen": "risen" in words,
        }
        found.append(late(**changes))
    return tuple(found)

"""Snapshots for tests: one valid default, changed where a test needs it."""

from dataclasses import replace
from typing import Any, Final

from rank_probe.snapshot import Snapshot

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
    busy_seconds_squared=10.75,
    stage="forward",
    stage_elapsed_seconds=0.25,
)


def snapshot(**changes: Any) -> Snapshot:
    """Return the default snapshot with *changes*."""
    return replace(DEFAULT, **changes)

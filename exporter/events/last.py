"""A rank's last event: what it last began or ended, according to its probe."""

from dataclasses import dataclass
from typing import Final

from rank_probe.wire.snapshot import Snapshot

BEGAN: Final = "began"
DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class LastEvent:
    """An *event* that *began* or is *done*, and when, in Unix seconds of the node's clock.

    *seconds* is how long it took, None while it lasts.
    """

    event: str
    state: str
    timestamp_seconds: float
    seconds: float | None


def last_event(snapshot: Snapshot) -> LastEvent | None:
    """Return the latest change that *snapshot* tells, None if its probe tells no events."""
    changes = [_changed(**each) for each in snapshot.lifecycle_events]
    return max(changes, key=lambda event: event.timestamp_seconds, default=None)


def _changed(
    number: int, event: str, began_timestamp_seconds: float, seconds: float | None
) -> LastEvent:
    if seconds is None:
        return LastEvent(event, BEGAN, began_timestamp_seconds, None)
    return LastEvent(event, DONE, began_timestamp_seconds + seconds, seconds)

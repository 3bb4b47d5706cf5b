"""Events in the lives of ranks: the last one of each, and all of them as records of the log."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rank_probe.wire.snapshot import Snapshot

logger = logging.getLogger(__name__)

BEGAN: Final = "began"
DONE: Final = "done"
RESTART: Final = "restart"
# A user's own process can claim any number of events: no more than this are logged for a rank.
RECORDS_A_MINUTE: Final = 60
# Ranks remembered beyond those that report; each takes half a kilobyte.
MOST_RANKS: Final = 4096


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
    """Return the latest change that *snapshot* reports; None if its probe reports no events."""
    changes = [_changed(**each) for each in snapshot.lifecycle_events]
    return max(changes, key=lambda event: event.timestamp_seconds, default=None)


def _changed(
    number: int, event: str, began_timestamp_seconds: float, seconds: float | None
) -> LastEvent:
    if seconds is None:
        return LastEvent(event, BEGAN, began_timestamp_seconds, None)
    return LastEvent(event, DONE, began_timestamp_seconds + seconds, seconds)


@dataclass(slots=True)
class _Logged:
    """What was logged of one process of a rank: all up to *number*, less the ends of *open*."""

    incarnation: tuple[int, float]
    number: int = 0
    open: set[int] = field(default_factory=set)
    last_heard_seconds: float | None = None
    finished: bool = False
    records: float = RECORDS_A_MINUTE
    counted_seconds: float = 0.0


class EventLog:
    """Logs the beginning and the end of each event once, from the start of this exporter on.

    Call `see` with each snapshot that is news to the rank store.
    """

    def __init__(
        self,
        host: str,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._now = now
        self._began = wall()
        self._known: dict[tuple[str, int], _Logged] = {}

    def see(self, snapshot: Snapshot) -> None:
        """Log the events in *snapshot* that no earlier snapshot reported."""
        key = (snapshot.job_id, snapshot.rank)
        known = self._known.pop(key, None)
        incarnation = (snapshot.attempt, snapshot.started_timestamp_seconds)
        if known is None or known.incarnation != incarnation:
            before, known = known, _Logged(incarnation, counted_seconds=self._now())
            if before is not None:  # Else a rank that keeps restarting fills the log.
                known.records, known.counted_seconds = before.records, before.counted_seconds
            if _is_restart(before, snapshot):
                self._log(known, snapshot, _restart(before, snapshot))
        self._known[key] = known  # The last one: it was heard of last.
        for event in _news(known, snapshot.lifecycle_events):
            self._log(known, snapshot, event)
        known.last_heard_seconds = snapshot.heartbeat_timestamp_seconds
        known.finished = snapshot.finished
        if len(self._known) > MOST_RANKS:
            del self._known[next(iter(self._known))]

    def _log(self, known: _Logged, snapshot: Snapshot, change: LastEvent) -> None:
        if change.timestamp_seconds < self._began or not self._may_log(known):
            return
        took = "" if change.seconds is None else f" after {change.seconds:.1f} s"
        logger.info(
            "rank %d of job %r: %s %s%s",
            *(snapshot.rank, snapshot.job_id, change.event, change.state, took),
            extra={
                "event": change.event,
                "state": change.state,
                "event_timestamp_seconds": change.timestamp_seconds,
                "duration_seconds": change.seconds,
                "job_id": snapshot.job_id,
                "rank": snapshot.rank,
                "peer_group": snapshot.peer_group,
                "host": self._host,
                "pid": snapshot.pid,
                "attempt": snapshot.attempt,
                "steps": snapshot.steps,
            },
        )

    def _may_log(self, known: _Logged) -> bool:
        now = self._now()
        more = (now - known.counted_seconds) * RECORDS_A_MINUTE / 60
        known.records, known.counted_seconds = min(known.records + more, RECORDS_A_MINUTE), now
        if known.records < 1:
            return False
        known.records -= 1
        return True


def _news(known: _Logged, events: Iterable[Mapping[str, Any]]) -> Iterator[LastEvent]:
    """Yield what of *events* is news to *known*, and note it there."""
    reported = set()
    for event in events:
        number, is_over = event["number"], event["seconds"] is not None
        reported.add(number)
        is_new = number > known.number
        known.number = max(known.number, number)
        if is_new or (is_over and number in known.open):
            (known.open.discard if is_over else known.open.add)(number)
            yield _changed(**event)
    known.open &= reported


def _is_restart(before: _Logged | None, snapshot: Snapshot) -> bool:
    """Say whether *snapshot* is the first of a process that replaces one which ended badly.

    A process that only got another rank, in a group that was formed anew, is not a restart.
    """
    is_renumbered = snapshot.group_formed_timestamp_seconds is not None
    if before is None:
        return snapshot.attempt > 0 and not is_renumbered
    return snapshot.attempt > before.incarnation[0] or not (before.finished or is_renumbered)


def _restart(before: _Logged | None, snapshot: Snapshot) -> LastEvent:
    """Return the restart; it took since the last report of the old process, if that is known."""
    at = snapshot.started_timestamp_seconds
    heard = None if before is None else before.last_heard_seconds
    seconds = None if heard is None or heard > at else at - heard
    return LastEvent(RESTART, DONE, at, seconds)

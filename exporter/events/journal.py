"""Turns snapshots into lines of the events file: each event's beginning and end exactly once."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from exporter.events.last import BEGAN, DONE
from rank_probe.wire.snapshot import Snapshot

RESTART: Final = "restart"
# A process of its user's own making can claim any number of events: no more are written for a rank.
LINES_A_MINUTE: Final = 60
# Ranks remembered beyond those that report; each takes half a kilobyte.
MOST_RANKS: Final = 4096

RankKey = tuple[str, int]
Incarnation = tuple[int, float]


@dataclass(slots=True)
class _Told:
    """What was written about one process of a rank: all up to *number*, less the ends of *open*."""

    incarnation: Incarnation
    number: int = 0
    open: set[int] = field(default_factory=set)
    last_heard_seconds: float | None = None
    finished: bool = False
    lines: float = LINES_A_MINUTE
    counted_seconds: float = 0.0


class Journal:
    """Hands each line to *write*, or calls *drop* if its rank has too many.

    Call `see` with each snapshot that is news to the rank store.

    *written* are the lines that an exporter before this one wrote, so that none is repeated. What
    happened before this exporter began is marked, because the rest of its file may be gone.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        drop: Callable[[], None],
        host: str,
        written: Iterable[str] = (),
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._drop = drop
        self._host = host
        self._now = now
        self._began = wall()
        self._told: dict[RankKey, _Told] = {}
        for line in written:
            self._remember(line)

    def see(self, snapshot: Snapshot) -> None:
        """Write what *snapshot* tells and no snapshot before it told."""
        key = (snapshot.job_id, snapshot.rank)
        told = self._told.pop(key, None)
        incarnation = (snapshot.attempt, snapshot.started_timestamp_seconds)
        if told is None or told.incarnation != incarnation:
            before, told = told, _Told(incarnation, counted_seconds=self._now())
            if _is_restart(before, snapshot):
                self._line(told, snapshot, _restart(before, snapshot))
        self._told[key] = told  # The last one: it was heard of last.
        for event in _news(told, snapshot.lifecycle_events):
            self._line(told, snapshot, event)
        told.last_heard_seconds = snapshot.heartbeat_timestamp_seconds
        told.finished = snapshot.finished
        if len(self._told) > MOST_RANKS:
            del self._told[next(iter(self._told))]

    def _line(self, told: _Told, snapshot: Snapshot, event: Mapping[str, Any]) -> None:
        if not self._may_write(told):
            self._drop()
            return
        at = event["at"]
        line = {
            "time": _time(at),
            "event": event["event"],
            "state": event["state"],
            "job_id": snapshot.job_id,
            "rank": snapshot.rank,
            "peer_group": snapshot.peer_group,
            "host": self._host,
            "pid": snapshot.pid,
            "attempt": snapshot.attempt,
            "steps": snapshot.steps,
            "duration_seconds": None if event["seconds"] is None else round(event["seconds"], 3),
            "number": event["number"],
            "process_started": snapshot.started_timestamp_seconds,
            "known_at_start": at < self._began,
        }
        self._write(json.dumps(line))

    def _may_write(self, told: _Told) -> bool:
        now = self._now()
        more = (now - told.counted_seconds) * LINES_A_MINUTE / 60
        told.lines, told.counted_seconds = min(told.lines + more, LINES_A_MINUTE), now
        if told.lines < 1:
            return False
        told.lines -= 1
        return True

    def _remember(self, text: str) -> None:
        try:
            line = json.loads(text)
            key = (str(line["job_id"]), int(line["rank"]))
            incarnation = (int(line["attempt"]), float(line["process_started"]))
            number, state = int(line["number"]), line["state"]
        except (ValueError, TypeError, KeyError):
            return  # Cut off, or not ours.
        told = self._told.get(key)
        if told is None or told.incarnation < incarnation:
            told = self._told[key] = _Told(incarnation, counted_seconds=self._now())
        if told.incarnation == incarnation:
            told.number = max(told.number, number)
            (told.open.add if state == BEGAN else told.open.discard)(number)
            told.finished = told.finished or line.get("event") == "end"


def _time(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # A probe whose clock says the year 10000.
        return None


def _news(told: _Told, events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what of *events* was not told, and take it as told."""
    reported = set()
    for event in events:
        number, began, seconds = event["number"], event["began_timestamp_seconds"], event["seconds"]
        reported.add(number)
        is_new = number > told.number
        told.number = max(told.number, number)
        line = {"event": event["event"], "number": number, "seconds": seconds}
        if seconds is None and is_new:
            told.open.add(number)
            yield line | {"state": BEGAN, "at": began}
        elif seconds is not None and (is_new or number in told.open):
            told.open.discard(number)
            yield line | {"state": DONE, "at": began + seconds}
    told.open &= reported


def _is_restart(before: _Told | None, snapshot: Snapshot) -> bool:
    if before is None:
        return snapshot.attempt > 0
    return snapshot.attempt > before.incarnation[0] or not before.finished


def _restart(before: _Told | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the restart; it took from the last report of the process before, if that is known."""
    at = snapshot.started_timestamp_seconds
    heard = None if before is None else before.last_heard_seconds
    seconds = None if heard is None or heard > at else at - heard
    return {"event": RESTART, "state": DONE, "at": at, "seconds": seconds, "number": 0}

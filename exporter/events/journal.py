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
class _Written:
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
        self._known: dict[RankKey, _Written] = {}
        for line in written:
            self._remember(line)

    def see(self, snapshot: Snapshot) -> None:
        """Write what *snapshot* tells and no snapshot before it told."""
        key = (snapshot.job_id, snapshot.rank)
        known = self._known.pop(key, None)
        incarnation = (snapshot.attempt, snapshot.started_timestamp_seconds)
        if known is None or known.incarnation != incarnation:
            before, known = known, _Written(incarnation, counted_seconds=self._now())
            if _is_restart(before, snapshot):
                self._line(known, snapshot, _restart(before, snapshot))
        self._known[key] = known  # The last one: it was heard of last.
        for event in _news(known, snapshot.lifecycle_events):
            self._line(known, snapshot, event)
        known.last_heard_seconds = snapshot.heartbeat_timestamp_seconds
        known.finished = snapshot.finished
        if len(self._known) > MOST_RANKS:
            del self._known[next(iter(self._known))]

    def _line(self, known: _Written, snapshot: Snapshot, event: Mapping[str, Any]) -> None:
        if not self._may_write(known):
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

    def _may_write(self, known: _Written) -> bool:
        now = self._now()
        more = (now - known.counted_seconds) * LINES_A_MINUTE / 60
        known.lines, known.counted_seconds = min(known.lines + more, LINES_A_MINUTE), now
        if known.lines < 1:
            return False
        known.lines -= 1
        return True

    def _remember(self, text: str) -> None:
        try:
            line = json.loads(text)
            key = (str(line["job_id"]), int(line["rank"]))
            incarnation = (int(line["attempt"]), float(line["process_started"]))
            number, state = int(line["number"]), line["state"]
        except (ValueError, TypeError, KeyError):
            return  # Cut off, or not ours.
        known = self._known.get(key)
        if known is None or known.incarnation < incarnation:
            known = self._known[key] = _Written(incarnation, counted_seconds=self._now())
        if known.incarnation == incarnation:
            known.number = max(known.number, number)
            (known.open.add if state == BEGAN else known.open.discard)(number)
            known.finished = known.finished or line.get("event") == "end"


def _time(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # A probe whose clock says the year 10000.
        return None


def _news(known: _Written, events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what of *events* is news to *known*, and note it there."""
    reported = set()
    for event in events:
        number, began, seconds = event["number"], event["began_timestamp_seconds"], event["seconds"]
        reported.add(number)
        is_new = number > known.number
        known.number = max(known.number, number)
        line = {"event": event["event"], "number": number, "seconds": seconds}
        if seconds is None and is_new:
            known.open.add(number)
            yield line | {"state": BEGAN, "at": began}
        elif seconds is not None and (is_new or number in known.open):
            known.open.discard(number)
            yield line | {"state": DONE, "at": began + seconds}
    known.open &= reported


def _is_restart(before: _Written | None, snapshot: Snapshot) -> bool:
    """Say whether *snapshot* is the first of a process that replaces one which ended badly.

    One that only got another number, in a group that was formed anew, ran before as well.
    """
    is_renumbered = snapshot.group_formed_timestamp_seconds is not None
    if before is None:
        return snapshot.attempt > 0 and not is_renumbered
    return snapshot.attempt > before.incarnation[0] or not (before.finished or is_renumbered)


def _restart(before: _Written | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the restart; it took from the last report of the process before, if that is known."""
    at = snapshot.started_timestamp_seconds
    heard = None if before is None else before.last_heard_seconds
    seconds = None if heard is None or heard > at else at - heard
    return {"event": RESTART, "state": DONE, "at": at, "seconds": seconds, "number": 0}

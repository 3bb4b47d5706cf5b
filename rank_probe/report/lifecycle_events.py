"""The events of a process's life, with their times: they show what a hung process did last."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from rank_probe.process.lifecycle import Lifecycle, Spans
from rank_probe.wire.snapshot import MOST_EVENTS
from rank_probe.wire.stages import CHECKPOINT, EVAL

# A loop may evaluate in every step: report one event of each kind a minute, and all long ones.
QUIET_SECONDS: Final = 60.0
ALWAYS_TOLD_SECONDS: Final = 10.0
SHORTEST_SECONDS: Final = 0.01


# As sent: number, event, began_timestamp_seconds, and seconds (None while the event lasts).
Event = dict[str, Any]


class LifecycleEvents:
    """Keeps the last events; those within a stage are found by `look`, about once a second.

    For one thread.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lifecycle = lifecycle
        self._now = now
        self._wall = wall
        self._told = 0
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._of_life: dict[str, Event] = {}
        self._last: list[Event] = []
        self._settled: tuple[Spans, int, int, bool] | None = None  # no event while unchanged
        self._stretches = {
            CHECKPOINT: _Stretches("checkpoint"),
            EVAL: _Stretches("evaluation"),
        }

    def look(self, stage: int | None, spent: Sequence[int], elapsed_seconds: float) -> list[Event]:
        """Return the last events, the latest begun last; the same list as long as nothing happens.

        *spent* has the nanoseconds so far in each stage. *stage* is the current one, or None
        while nothing is timed, and *elapsed_seconds* is the time in it.
        """
        spans = self._lifecycle.spans
        seen = spans, spent[CHECKPOINT], spent[EVAL], stage in self._stretches
        if seen == self._settled:
            return self._last
        now = self._now()
        for each, stretches in self._stretches.items():
            is_in_it = stage == each
            total = spent[each] / 1e9 + (elapsed_seconds if is_in_it else 0.0)
            stretches.look(total, is_in_it, now)
            if stretches.is_worth_telling(now):
                stretches.event = self._tell(stretches.name, now - stretches.began_seconds)
        self._look_at_life(spans, now)
        if "end" in self._of_life:  # There is no further look.
            for stretches in self._stretches.values():
                stretches.close()
        is_open = any(stretches.is_open for stretches in self._stretches.values())
        self._settled = None if is_open else seen
        self._last = [event.copy() for event in self._events]
        return self._last

    def _look_at_life(self, spans: Spans, now: float) -> None:
        for name, (since, until) in spans.items():
            # The first step and the end are moments; what leads to them has events of its own.
            is_moment = name in ("first_step", "end")
            if since is None or (is_moment and until is None):
                continue
            event = self._of_life.get(name)
            if event is None:
                event = self._of_life[name] = self._tell(name, now - since)
            if until is not None and event["seconds"] is None:
                event["seconds"] = until - since

    def _tell(self, name: str, age_seconds: float) -> Event:
        self._told += 1
        event = {
            "number": self._told,
            "event": name,
            "began_timestamp_seconds": self._wall() - age_seconds,
            "seconds": None,
        }
        self._events.append(event)
        return event


class _Stretches:
    """The stretches of time in one stage; each becomes an event if it is worth reporting.

    Parts less than one look apart are one stretch: a checkpoint is written in many parts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.began_seconds = 0.0
        self.event: Event | None = None
        self._last_total = 0.0
        self._before = 0.0
        self.is_open = False
        self._quiet_until = 0.0

    def look(self, total: float, is_in_it: bool, now: float) -> None:
        """Update with the *total* of seconds spent in the stage up to *now*."""
        grown = max(total - self._last_total, 0.0)
        if not self.is_open and (grown or is_in_it):
            self.is_open, self._before = True, self._last_total
            self.began_seconds = now - grown
        elif self.is_open and not grown and not is_in_it:
            self.close()
        self._last_total += grown

    def is_worth_telling(self, now: float) -> bool:
        """Whether the current stretch is an event that has not been reported yet."""
        if not self.is_open or self.event is not None:
            return False
        lasted = self._last_total - self._before
        if lasted < SHORTEST_SECONDS:
            return False
        if now < self._quiet_until and lasted < ALWAYS_TOLD_SECONDS:
            return False
        self._quiet_until = now + QUIET_SECONDS
        return True

    def close(self) -> None:
        """End the current stretch, if there is one."""
        if self.event is not None:
            self.event["seconds"] = self._last_total - self._before
        self.event = None
        self.is_open = False

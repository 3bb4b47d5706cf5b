"""The device clock: one event per stage boundary, read some steps later, never waited for."""

import enum
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, Protocol

from rank_probe.guest.guard import failures, never_raise
from rank_probe.measure.boundaries import BEGIN, COMPLETE, STAGE_BITS, packed
from rank_probe.measure.steps import Steps

# Whole steps not to query, because the device is probably still working on them.
YOUNG_STEPS: Final = 2
# How long to leave finished steps unread: calls of the driver are cheap one after the other, not
# between a step and the next.
READ_EVERY_NS: Final = 100_000_000
# Limit on the number of events. A driver queues about a thousand launches before it blocks the
# host, so a loop reaches this only if one of its steps has thousands of boundaries.
EVENTS: Final = 16_384
# With more entries on the tape, the training thread sums them up: there is no pusher.
LONG_TAPE: Final = 4096
_STEP_ENDS: Final = BEGIN | COMPLETE


class DeviceEvent(Protocol):
    """A point in a stream's work that records the device's time when the device reaches it."""

    def query(self) -> bool:
        """Return whether the device has reached it; never waits."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to *end_event*; both must be reached."""


class Events(Protocol):
    """Creates and records events; failures raise."""

    @property
    def device(self) -> int:
        """Return the device on whose streams the events are recorded."""

    def new(self) -> DeviceEvent:
        """Return an event that was never recorded."""

    def record(self, event: Any) -> int:
        """Record *event* on the calling thread's current stream; return which stream that is."""

    def is_capturing(self) -> bool:
        """Return whether the current stream's work is captured into a graph instead of run."""

    def follow(self) -> bool:
        """Switch to the calling thread's current device; return whether it is another one."""

    def may_query(self) -> bool:
        """Let the calling thread query, whatever others capture; return whether it may."""


class _State(enum.Enum):
    """What the clock does with the next boundary."""

    BEGINS = enum.auto()  # counting begins there
    COUNTS = enum.auto()
    IS_LOST = enum.auto()  # nothing is recorded until the end of a step
    HAS_FAILED = enum.auto()  # for good: an event has failed


# An attribute of an enumeration costs a call at each boundary.
_COUNTS: Final = _State.COUNTS


class DeviceClock:
    """A stage clock's boundaries in device time, for *steps* to sum up.

    Create it on the training thread and pass it to `Timeline.also_tell` at the end of a step:
    counting begins at the first boundary that it gets, and after a gap at the end of a step.
    `boundary` records an event. At the end of a step, which the training thread reports, and not
    more often than *every* nanoseconds, steps move to *tape* that are at least two steps old and
    that the device has finished. Nothing synchronises, and only that thread queries, but for
    `stands_in`. While the current stream is captured, nothing is recorded or queried: the
    boundaries in the capture are left out, so it counts for the stage it began in.

    Steps are numbered as on the host, which had counted *steps_before* when this was created;
    discarded steps leave gaps in the numbers.

    A step with a gap is discarded as a whole and counted in *dropped_steps*: if all *limit* events
    are in use, if it ends inside a capture, if the thread moves to another device, and, for good,
    every step once an event has failed (the device is lost).

    Every step is timed, none is sampled. docs/costs.md has what that costs.
    """

    def __init__(
        self,
        events: Events,
        *,
        steps_before: int = 0,
        limit: int = EVENTS,
        every: int = READ_EVERY_NS,
        now: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._limit, self._every = limit, every
        self._host_now = now
        self._thread = get_ident()
        self._state = _State.BEGINS
        self._free: list[DeviceEvent] = []
        self._free_on = {events.device: self._free}
        self._made = 0
        self._step: list[Any] = []  # the unfinished step: mark, event, mark, event...
        self._last_on: dict[int, DeviceEvent] = {}  # its last event on each stream
        self._waiting: deque[tuple[int, list[Any], dict[int, DeviceEvent]]] = deque()
        self._number = steps_before  # of the last step that ended
        self._reached: DeviceEvent | None = None  # the latest event with a known time
        self._reached_mark = 0  # what begins there
        self._at = 0
        self._read = (0, now())  # the last device time that was read, and when
        self._next_drain = 0
        self._is_capturing = events.is_capturing
        self._record_on = events.record
        self.tape: list[int] = []
        self.steps = Steps(self._take_tape, self.now, wall)
        self._numbers = self.steps.numbers = deque()
        self.dropped_steps = 0

    def boundary(self, mark: int) -> None:
        """Record the boundary *mark*; never raises.

        Called on the training thread, or on an autograd engine's while the training thread is
        blocked.
        """
        try:
            if self._state is _COUNTS and not mark & _STEP_ENDS and not self._is_capturing():
                self._record(mark)
            else:
                self._take(mark)
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at each boundary
            self._state = _State.HAS_FAILED
            failures.note("DeviceClock.boundary")

    @property
    def has_failed(self) -> bool:
        """Whether an event has failed, so that no step is timed any more."""
        return self._state is _State.HAS_FAILED

    @never_raise
    def finish(self) -> None:
        """Read everything that the device has finished, however recent; training thread only."""
        if get_ident() == self._thread and not (self.has_failed or self._events.is_capturing()):
            self._drain(0)

    def now(self) -> int:
        """Return nanoseconds on the tape's clock, extended by the host's since the last read."""
        at, when = self._read
        return at + self._host_now() - when

    @never_raise
    def stands_in(self) -> int | None:
        """Return the stage in which the device stands; None if it has reached all of its events.

        For another thread than the training thread, while that one crosses no boundary; it may go
        on meanwhile, and then this was so a moment ago. None also where nobody can tell.
        """
        if self.has_failed or not self._events.may_query():
            return None
        stage = self._reached_mark
        for step in (*(step for _, step, _ in tuple(self._waiting)), list(self._step)):
            for mark, event in zip(step[::2], step[1::2], strict=True):
                if not event.query():
                    return stage & STAGE_BITS
                stage = mark
        return None

    def _take_tape(self) -> bytes:
        length = len(self.tape)  # The training thread may append meanwhile.
        taken = self.tape[:length]
        del self.tape[:length]
        return packed(taken)

    def _take(self, mark: int) -> None:
        """Take a boundary that is not one more of a step that counts."""
        if self.has_failed:
            self.dropped_steps += bool(mark & COMPLETE)
        elif self._is_capturing():
            if mark & _STEP_ENDS:
                self._count(mark)
                self._lose(mark)
        elif mark & _STEP_ENDS:
            self._end_step(mark)
        elif self._state is not _State.IS_LOST:
            self._record(mark)

    def _count(self, mark: int) -> None:
        if mark & COMPLETE:
            self._number += 1

    def _end_step(self, mark: int) -> None:
        self._count(mark)
        if self._events.follow():
            self._forget()
        if self._state is _State.IS_LOST:
            if mark & COMPLETE:
                self.dropped_steps += 1
            # Half of the events must be free, or the next gap would follow at once.
            if not self._are_scarce():
                self._state = _State.BEGINS
        if self._state is not _State.IS_LOST:
            is_whole = bool(mark & COMPLETE) and self._state is _State.COUNTS
            self._record(mark)
            if is_whole and self._state is _State.COUNTS:
                whole = self._number, self._step, self._last_on
                self._step, self._last_on = [], {}
                self._waiting.append(whole)
        if self._host_now() >= self._next_drain or self._are_scarce():
            self._drain(YOUNG_STEPS)

    def _are_scarce(self) -> bool:
        """Whether more than half of the events are in use."""
        return 2 * (self._made - len(self._free)) > self._limit

    def _record(self, mark: int) -> None:
        if self._free:
            event = self._free.pop()
        elif self._made < self._limit:
            event = self._events.new()
            self._made += 1
        else:
            self._lose(mark)
            return
        if self._state is _State.BEGINS:
            self._state = _State.COUNTS
            mark = mark & STAGE_BITS | BEGIN
        self._last_on[self._record_on(event)] = event
        self._step += (mark, event)

    def _lose(self, mark: int) -> None:
        """Discard the unfinished step up to the end of a step; it is counted where it ends."""
        self._state = _State.IS_LOST
        self._free += self._step[1::2]
        self._step, self._last_on = [], {}
        if mark & COMPLETE:
            self.dropped_steps += 1

    def _forget(self) -> None:
        """Discard everything unread: an event belongs to one device forever.

        No event is destroyed, because that may block; they wait for their device to come back.
        """
        self._lose(0)
        for _, step, _ in self._waiting:
            self._free += step[1::2]
        self.dropped_steps += len(self._waiting)
        self._waiting.clear()
        if self._reached is not None:
            self._free.append(self._reached)
            self._reached = None
        self._free = self._free_on.setdefault(self._events.device, [])
        self._made = len(self._free)

    def _drain(self, young: int) -> None:
        """Move the steps that the device has finished to the tape, except the last *young* ones.

        Distances are measured from the latest event that was reached, because small ones are exact
        to a few nanoseconds. An event on another stream may precede the one before it; then it gets
        the same time.
        """
        waiting, tape, free = self._waiting, self.tape, self._free
        at, reached = self._at, self._reached
        while len(waiting) > young and all(event.query() for event in waiting[0][2].values()):
            number, step, _ = waiting.popleft()
            self._numbers.append(number)  # First: another thread may be summing up the tape.
            for mark, event in zip(step[::2], step[1::2], strict=True):
                elapsed = 0 if reached is None else round(reached.elapsed_time(event) * 1e6)
                if elapsed < 0:
                    free.append(event)
                else:
                    if reached is not None:
                        free.append(reached)
                    reached = event
                    at += elapsed
                tape += (mark, at)
                self._reached_mark = mark
            self._at, self._reached = at, reached
            self._read = (at, self._host_now())
        self._next_drain = self._host_now() + self._every
        if len(tape) > LONG_TAPE:
            self.steps.fold(wait=False)

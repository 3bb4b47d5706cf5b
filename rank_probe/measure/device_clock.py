"""The device clock: one event per stage boundary, read some steps later, never waited for.

The recorder exists twice: here, and in _device.c at a fraction of the cost. Tests keep the two
equal.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Thread, get_ident
from typing import Any, Final, Protocol

from rank_probe.guest.guard import failures, never_raise
from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, STAGE_BITS, packed
from rank_probe.measure.steps import Steps
from rank_probe.wire.stages import BACKWARD, SYNC

try:
    from rank_probe import _tape  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _tape = None

# How many recent whole steps not to query: the device is probably still working on them.
YOUNG_STEPS: Final = 2
# How long finished steps stay unread. Driver calls are cheap back to back, but not when each falls
# between two steps.
READ_EVERY_NS: Final = 100_000_000
# No work can be queued in less: torch and Python take longer, a kernel launch takes as long.
AT_ONCE_NS: Final = 2_000
# Limit on the number of events. A driver queues about a thousand launches before it blocks the
# host, so a loop reaches this only if one of its steps has thousands of boundaries.
EVENTS: Final = 16_384
# How long to wait for the query of a stalled device. It takes microseconds, unless the driver hangs
# too and holds a lock.
LOOK_SECONDS: Final = 0.1
# With more untaken reads than this, the training thread sums them up: there is no pusher.
MOST_READS: Final = 100
_STEP_ENDS: Final = BEGIN | COMPLETE
# What the next boundary does: it starts the counting, it counts, or it is dropped. Dropping lasts
# until the end of a step.
_BEGINS, _COUNTS, _IS_LOST = range(3)


class Events(Protocol):
    """Creates and records events; failures raise."""

    @property
    def device(self) -> int:
        """Return the device on whose streams the events are recorded."""

    def new(self) -> Any:
        """Return an event that was never recorded; it is used as torch.cuda.Event."""

    def stream(self) -> int:
        """Return the calling thread's current stream."""

    def record(self, event: Any, stream: int) -> object:
        """Record *event* on that *stream*."""

    def is_capturing(self) -> bool:
        """Return whether the current stream's work is captured into a graph instead of run."""

    def may_query(self) -> bool:
        """Let the calling thread query, whatever others capture; return whether it may."""

    def is_reached(self, event: Any) -> bool:
        """Return whether the device has reached *event*; for a thread that may query."""

    def runtime(self) -> tuple[bytes, Callable[[int], int]] | None:
        """Return what the recorder in C calls; None if only that in Python can serve."""


class PythonRecorder:
    """Records an event at each boundary of a loop, and reads the times of whole steps.

    *number* is the number of the last step that ended. At the end of a step, at most once in
    *every* nanoseconds unless events are scarce, the recorder calls *due* with the number of recent
    steps to leave unread.
    """

    def __init__(
        self,
        events: Events,
        number: int,
        limit: int,
        every: int,
        at_once: int,
        hides: bool,
        due: Callable[[int], object],
        now: Callable[[], int],
    ) -> None:
        self._events, self._number, self._limit = events, number, limit
        self._every, self._at_once, self._due, self._now = every, at_once, due, now
        self._hides = hides
        self._state = _BEGINS
        self._free: list[Any] = []
        self._made = 0
        self._stage = self._recorded = 0  # of the last boundary, and when the last event was
        self._home = 0  # the stream of the last boundary that is no wait
        # The unfinished step: mark, event, mark, event... None is the event before.
        self._step: list[Any] = []
        self._last_on: dict[int, Any] = {}  # its last event on each stream
        self._waiting: deque[tuple[int, list[Any], dict[int, Any]]] = deque()
        self._reached: Any = None  # the latest event with a known time
        self._reached_mark = 0  # what begins there
        self._next_read = 0
        self.at = 0  # the device's time of the last boundary that was read, in nanoseconds
        self.dropped_steps = 0
        self.error: str | None = None  # why no step is timed any more

    def boundary(self, mark: int, /) -> None:
        """Record the boundary *mark*; never raises."""
        try:
            self._take(mark)
        except Exception as error:  # noqa: BLE001 - as guard.never_raise, which costs a call more
            self.error = str(error)
            failures.note("DeviceClock.boundary")

    def read(self, young: int, /) -> tuple[bytes, list[int]]:
        """Return the boundaries of the steps that the device has finished, and their numbers.

        Boundaries are packed. The last *young* steps stay unread.

        Times are measured from the latest event that was reached, because short intervals are exact
        to a few nanoseconds. An event on another stream may be reached before its predecessor; then
        both get the predecessor's time.
        """
        boundaries: list[int] = []
        numbers: list[int] = []
        waiting = self._waiting
        while len(waiting) > young and all(event.query() for event in waiting[0][2].values()):
            number, step, _ = waiting.popleft()
            for mark, event in zip(step[::2], step[1::2], strict=True):
                before = self._reached
                elapsed = round(before.elapsed_time(event) * 1e6) if before and event else 0
                if elapsed < 0:
                    self._free.append(event)
                elif event is not None:
                    self._free += filter(None, [before])
                    self._reached = event
                    self.at += elapsed
                boundaries += (mark, self.at)
                self._reached_mark = mark
            numbers.append(number)
        self._next_read = self._now() + self._every
        return packed(boundaries), numbers

    def stands_in(self) -> int | None:
        """Return the stage in which the device stands; None if it has reached all events."""
        stage = self._reached_mark
        for step in (*(step for _, step, _ in tuple(self._waiting)), list(self._step)):
            for mark, event in zip(step[::2], step[1::2], strict=True):
                if event is not None and not self._events.is_reached(event):
                    return stage & STAGE_BITS
                stage = mark
        return None

    def _take(self, mark: int) -> None:
        is_end = mark & _STEP_ENDS
        if self.error is not None:
            self.dropped_steps += bool(mark & COMPLETE)
            return
        what_counts = mark & (STAGE_BITS | _STEP_ENDS | RELEASE)
        if self._state == _COUNTS and what_counts == self._stage:
            return
        self._number += bool(mark & COMPLETE)
        stream, is_wait = self._events.stream(), mark & STAGE_BITS == SYNC
        is_elsewhere = self._hides and stream != self._home and not is_end
        if is_elsewhere and (is_wait or mark & RELEASE):
            return
        # A batch may be fetched and copied on a stream of its own; gradients are computed at home.
        if is_end or (mark & STAGE_BITS == BACKWARD and self._stage != SYNC):
            self._home = stream
        if self._events.is_capturing():
            if is_end:
                self._lose(mark)
        elif is_end:
            self._end_step(mark, stream)
        elif self._state != _IS_LOST:
            self._record(mark, stream)

    def _end_step(self, mark: int, stream: int) -> None:
        if self._state == _IS_LOST:
            self.dropped_steps += bool(mark & COMPLETE)
            # Half of the events must be free, or the next gap would follow at once.
            if not self._are_scarce():
                self._state = _BEGINS
        if self._state != _IS_LOST:
            is_whole = bool(mark & COMPLETE) and self._state == _COUNTS
            self._record(mark, stream)
            if is_whole and self._state == _COUNTS:
                self._waiting.append((self._number, self._step, self._last_on))
                self._step, self._last_on = [], {}
        if self._now() >= self._next_read or self._are_scarce():
            # A step with this many events is read now: younger steps would find none left.
            self._due(0 if self._are_scarce() else YOUNG_STEPS)

    def _are_scarce(self) -> bool:
        """Whether more than half of the events are in use."""
        return 2 * (self._made - len(self._free)) > self._limit

    def _record(self, mark: int, stream: int) -> None:
        event = None
        is_at_once = self._now() - self._recorded < self._at_once and self._stage != SYNC
        if self._state != _COUNTS or not is_at_once:
            if self._free:
                event = self._free.pop()
            elif self._made < self._limit:
                event = self._events.new()
                self._made += 1
            else:
                self._lose(mark)
                return
            if self._state == _BEGINS:
                self._state = _COUNTS
                mark = mark & STAGE_BITS | BEGIN
            self._events.record(event, stream)
            self._last_on[stream] = event
            self._recorded = self._now()
        self._step += (mark, event)
        self._stage = mark & STAGE_BITS

    def _lose(self, mark: int) -> None:
        """Discard the unfinished step up to its end, where *dropped_steps* counts it."""
        self._state = _IS_LOST
        self._free += filter(None, self._step[1::2])
        self._step, self._last_on = [], {}
        self.dropped_steps += bool(mark & COMPLETE)


class DeviceClock:
    """A stage clock's boundaries in device time, for *steps* to sum up.

    Create it on the training thread and pass `boundary` to `Timeline.also_tell` at the end of a
    step. Counting begins at the first boundary, and again at the end of a step after a gap.
    `boundary` records an event, on the training thread or on an autograd engine thread while the
    training thread is blocked. At the end of a step, at most once in *every* nanoseconds, the
    training thread reads the steps that are at least two steps old and finished on the device. Then
    it calls *after_read*. Nothing synchronises; only `stands_in` queries from another thread. While
    the current stream is captured, nothing is recorded or queried. A capture therefore counts for
    the stage it began in.

    Boundaries within *at_once* nanoseconds share an event, except for the end of a wait.

    Steps are numbered as on the host, which had counted *steps_before* when this was created;
    discarded steps leave gaps in the numbers.

    A step with a gap is discarded as a whole and counted in *recorder.dropped_steps*. A step has a
    gap if all *limit* events are in use or if it ends inside a capture. Once an event has failed
    (the device is lost), every step is discarded.

    With *hides_exchange*, a wait on a stream other than the work's is not timed: the work hides it.
    FSDP calls its collectives on streams of their own and makes the work's stream wait for them.
    """

    def __init__(
        self,
        events: Events,
        *,
        steps_before: int = 0,
        limit: int = EVENTS,
        every: int = READ_EVERY_NS,
        at_once: int = AT_ONCE_NS,
        hides_exchange: bool = False,
        now: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
        after_read: Callable[[], object] = lambda: None,
    ) -> None:
        self._events, self._host_now, self._thread = events, now, get_ident()
        self._after_read = after_read
        self._read_at = (0, now())  # the last device time that was read, and when
        self._look: Thread | None = None  # at a device that stands
        self._tape: deque[bytes] = deque()
        self.steps = Steps(self._take_tape, self.now, wall)
        self._numbers = self.steps.numbers = deque()
        given = steps_before, limit, every, at_once, hides_exchange
        runtime = events.runtime()
        self.recorder: PythonRecorder = (
            PythonRecorder(events, *given, self._read, now)
            if _tape is None or runtime is None
            else _tape.Recorder(runtime, events.device, *given, never_raise(self._read))
        )
        self.boundary = self.recorder.boundary

    @never_raise
    def finish(self) -> None:
        """Read everything that the device has finished, however recent; training thread only."""
        if get_ident() == self._thread and not (self.recorder.error or self._events.is_capturing()):
            self._read(0)

    def now(self) -> int:
        """Return nanoseconds on the device's clock, extended by the host's since the last read."""
        at, when = self._read_at
        return at + self._host_now() - when

    @never_raise
    def stands_in(self) -> int | None:
        """Return the stage in which the device stands; None if it has reached all of its events.

        Call it while the training thread crosses no boundary. If that thread goes on meanwhile, the
        answer is a moment old. None also if the stage is unknown: the driver may not respond.
        """
        if self.recorder.error or (self._look is not None and self._look.is_alive()):
            return None
        found: list[int | None] = []

        def look() -> None:
            if self._events.may_query():
                found.append(self.recorder.stands_in())

        self._look = Thread(target=never_raise(look), name="rank_probe_device", daemon=True)
        try:
            self._look.start()
        except RuntimeError:  # The interpreter ends.
            return None
        self._look.join(LOOK_SECONDS)
        return found[0] if found else None

    def _read(self, young: int) -> None:
        boundaries, numbers = self.recorder.read(young)
        if boundaries:
            self._numbers.extend(numbers)  # First: another thread may be summing up the tape.
            self._tape.append(boundaries)
            self._read_at = (self.recorder.at, self._host_now())
        self._after_read()
        if len(self._tape) > MOST_READS:
            self.steps.fold(wait=False)
        if self.recorder.error:
            raise RuntimeError(f"No step is timed on the device any more: {self.recorder.error}.")

    def _take_tape(self) -> bytes:
        return b"".join(self._tape.popleft() for _ in range(len(self._tape)))

"""Steps: sums up the stage clock's boundaries, cut at the release, whole steps only."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rank_probe.clocks import BEGIN, COMPLETE, RELEASE, STAGE_BITS
from rank_probe.stages import OTHER, STAGES, SYNC

# The exposed waits of the last minute are kept; with steps under 120 ms they cover less time.
RING: Final = 512
FLOOR_WINDOW_SECONDS: Final = 60.0
FLOOR_QUANTILE: Final = 0.02
# It changes slowly, and sorting the waits is most of the cost of a push.
FLOOR_READ_SECONDS: Final = 5.0
# Step vectors kept for a taker; ten seconds of the fastest loops.
VECTORS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters over all whole steps: nanoseconds per stage, in the order of STAGES."""

    nanoseconds: tuple[int, ...]
    steps: int
    busy_seconds_squared: float
    last_step_timestamp_seconds: float | None

    @property
    def busy_nanoseconds(self) -> int:
        """All time except the exposed wait."""
        return sum(self.nanoseconds) - self.nanoseconds[SYNC]


class StepVector(NamedTuple):
    """One whole step: its number, when it ended, nanoseconds per stage in the order of STAGES.

    Steps of the training loop are numbered from 1, so the number is the same on all ranks that were
    timed from their first step on, whichever clock times them.
    """

    step: int
    ended: int
    nanoseconds: tuple[int, ...]


class Vectors:
    """The steps that one taker has not taken yet, at most the last VECTORS; see `Steps.keep`."""

    def __init__(self, fold: Callable[[], None]) -> None:
        self._fold = fold
        self.waiting: deque[StepVector] = deque(maxlen=VECTORS)

    def take(self) -> list[StepVector]:
        """Return the steps since the last call, and forget them; for one thread."""
        self._fold()
        taken: list[StepVector] = []
        while self.waiting:
            taken.append(self.waiting.popleft())
        return taken


class Steps:
    """Counts steps that run from one release to the next.

    The *release* is the end of the last collective of a step, when all ranks continue together. It
    is only known afterwards: each candidate is marked, and the mark where the next step visibly
    begins commits up to the last candidate. What came after that belongs to the next step, so a
    delay after the collective is not charged to the ranks that wait for it.

    *tape* is a StageClock's, or a device's. Any thread may call the methods.
    """

    def __init__(
        self,
        tape: list[int],
        now: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._tape = tape
        self._now = now
        self._wall = wall
        self._lock = threading.Lock()
        self._nanoseconds = [0] * len(STAGES)
        self._stage = OTHER
        self._since = now()
        self._at_release: list[int] | None = None
        self._release_time = 0
        self._begun_at = 0  # when counting began, minus what had been committed before
        self._committed = [0] * len(STAGES)
        self._committed_until = 0
        self._steps = 0
        self._busy_squared = 0.0
        self._last_ended: int | None = None
        self._waits = [0] * RING
        self._wait_times: list[int | None] = [None] * RING
        self._floor: float | None = None
        self._floor_read = 0
        self._takers: tuple[Vectors, ...] = ()
        # Numbers of the steps that end on the tape, if some steps are missing from it.
        self.numbers: deque[int] | None = None

    def keep(self) -> Vectors:
        """Keep every step from now on for the caller, until `forget`."""
        self.fold()
        kept = Vectors(self.fold)
        with self._lock:
            self._takers = (*self._takers, kept)
        return kept

    def forget(self, kept: Vectors) -> None:
        """Keep no more steps for the taker of *kept*."""
        with self._lock:
            self._takers = tuple(each for each in self._takers if each is not kept)

    def fold(self, *, wait: bool = True) -> None:
        """Sum up the tape; without *wait*, skip it if another thread is about to."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            length = len(self._tape)  # The owner may append meanwhile.
            taken = self._tape[:length]
            del self._tape[:length]
            self._add(taken)
        finally:
            self._lock.release()

    def totals(self) -> Totals:
        """Return the counters over all whole steps so far."""
        self.fold()
        with self._lock:
            return Totals(
                nanoseconds=tuple(self._committed),
                steps=self._steps,
                busy_seconds_squared=self._busy_squared,
                last_step_timestamp_seconds=self._timestamp(self._last_ended),
            )

    def spent(self) -> tuple[int, ...]:
        """Return the nanoseconds per stage up to the last boundary, unfinished step included."""
        self.fold()
        with self._lock:
            return tuple(self._nanoseconds)

    def elapsed_seconds(self) -> float:
        """Return how long ago the last boundary was: the time in the current stage so far."""
        self.fold()
        return max(self._now() - self._since, 0) / 1e9

    def floor_seconds(self) -> float | None:
        """Return the 2 % quantile of the exposed waits of the last minute's steps.

        This is the cost of communication alone, because the last rank to arrive waits for no other
        rank. None if no step of the last minute is known. May be a few seconds old.
        """
        now = self._now()
        if self._floor is None or now - self._floor_read > FLOOR_READ_SECONDS * 1e9:
            self._floor, self._floor_read = self._read_floor(now), now
        return self._floor

    def _read_floor(self, now: int) -> float | None:
        self.fold()
        oldest = now - FLOOR_WINDOW_SECONDS * 1e9
        waits = sorted(
            wait
            for wait, at in zip(self._waits[:], self._wait_times[:], strict=True)
            if at is not None and at > oldest
        )
        return waits[int(FLOOR_QUANTILE * len(waits))] / 1e9 if waits else None

    def _add(self, entries: list[int]) -> None:
        nanoseconds, stage, since = self._nanoseconds, self._stage, self._since
        for mark, now in zip(entries[::2], entries[1::2], strict=True):
            nanoseconds[stage] += now - since
            since = now
            if mark <= STAGE_BITS:
                stage = mark
                continue
            stage = mark & STAGE_BITS
            if mark & BEGIN:
                nanoseconds[:] = self._committed
                self._begun_at = now - self._committed_until
                self._at_release = None
            if mark & RELEASE:
                self._at_release = nanoseconds[:]
                self._release_time = now
            if mark & COMPLETE:
                self._commit(now)
        self._stage, self._since = stage, since

    def _commit(self, now: int) -> None:
        reached, ended = self._at_release, self._release_time
        if reached is None:
            reached, ended = self._nanoseconds[:], now
        self._at_release = None
        # The stages add up to the time since counting began, so no sum is needed.
        until = ended - self._begun_at
        wait = reached[SYNC] - self._committed[SYNC]
        busy_seconds = (until - self._committed_until - wait) / 1e9
        slot = self._steps % RING
        self._waits[slot] = wait
        self._wait_times[slot] = ended
        self._steps += 1
        self._busy_squared += busy_seconds * busy_seconds
        number = self._steps if self.numbers is None else self.numbers.popleft()
        if self._takers:
            spent = tuple(a - b for a, b in zip(reached, self._committed, strict=True))
            vector = StepVector(number, ended, spent)
            for taker in self._takers:
                taker.waiting.append(vector)
        self._committed, self._committed_until = reached, until
        self._last_ended = now

    def _timestamp(self, nanoseconds: int | None) -> float | None:
        """Return the clock's *nanoseconds* as Unix seconds of the wall clock as currently set."""
        if nanoseconds is None:
            return None
        return self._wall() - (self._now() - nanoseconds) / 1e9

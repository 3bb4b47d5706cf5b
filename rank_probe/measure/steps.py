"""The steps of a training loop, summed up from its boundaries, for all threads to read."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rank_probe.measure.ledger import StepTotals, WholeStep, new_ledger

# Most steps kept for each taker: ten seconds of the fastest loops.
MOST: Final = 20_000


class StepVector(NamedTuple):
    """One whole step: its number, when it ended, nanoseconds per stage in the order of STAGES.

    Steps of the training loop are numbered from 1, so the number is the same on all ranks that were
    timed from their first step on, whichever clock times them.
    """

    step: int
    ended: int
    nanoseconds: tuple[int, ...]


class Vectors:
    """The steps that one taker has not taken yet, at most the last MOST; see `Steps.keep`."""

    def __init__(self, fold: Callable[[], None]) -> None:
        self._fold = fold
        # `take` turns these into StepVectors; a push, which adds them, has other work to do.
        self.waiting: deque[tuple[int, int, tuple[int, ...]]] = deque(maxlen=MOST)

    def take(self) -> list[StepVector]:
        """Return the steps since the last call, and forget them; for one thread."""
        self._fold()
        return [StepVector._make(self.waiting.popleft()) for _ in range(len(self.waiting))]


def _ignore(_: list[int]) -> None:
    return None


class Steps:
    """Whole steps, as a Ledger counts them. Any thread may call the methods.

    *take* returns the boundaries since its last call, packed, from a host's tape or a device's;
    *settle* is called with those of their marks that have a bit of SETTLES. Summing up many
    boundaries at a time costs a fraction of handling each one with caches that a model has just
    emptied.
    """

    def __init__(
        self,
        take: Callable[[], bytes],
        now: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
        settle: Callable[[list[int]], object] = _ignore,
    ) -> None:
        self._take = take
        self._now = now
        self._wall = wall
        self._lock = threading.Lock()
        self._takers: tuple[Vectors, ...] = ()
        self._ledger = new_ledger(now())
        self._settle = settle
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
        """Sum up the boundaries; without *wait*, skip it if another thread is about to."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if boundaries := self._take():
                whole, settling = self._ledger.add(boundaries)
                if whole:
                    self._add(whole)
                if settling:
                    self._settle(settling)
        finally:
            self._lock.release()

    def totals(self) -> StepTotals:
        """Return the counters over all whole steps so far."""
        self.fold()
        with self._lock:
            ledger, now, last = self._ledger, self._now(), self._ledger.last_completed
            return StepTotals(
                tuple(ledger.committed),
                ledger.steps,
                # On the wall clock as currently set.
                None if last is None else self._wall() - (now - last) / 1e9,
                tuple(ledger.nanoseconds),
                max(now - ledger.since, 0) / 1e9,
            )

    def _add(self, whole: list[WholeStep]) -> None:
        numbers: Sequence[int] = range(self._ledger.steps - len(whole) + 1, self._ledger.steps + 1)
        if self.numbers is not None:
            numbers = [self.numbers.popleft() for _ in whole]
        for taker in self._takers:
            taker.waiting.extend(zip(numbers, *zip(*whole, strict=True), strict=True))

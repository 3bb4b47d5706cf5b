"""Steps: cut the stage clock at the release, commit whole steps only."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rank_probe.clocks import StageClock
from rank_probe.stages import STAGES, SYNC

# The exposed waits of the last minute are kept; steps under 60 ms keep a shorter memory.
RING = 1024
FLOOR_WINDOW_SECONDS = 60.0
FLOOR_QUANTILE = 0.02


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters over all whole steps: nanoseconds a stage, in the order of STAGES."""

    nanoseconds: tuple[int, ...]
    steps: int
    busy_seconds_squared: float
    last_step_timestamp_seconds: float | None

    @property
    def busy_nanoseconds(self) -> int:
        """All time but the exposed wait."""
        return sum(self.nanoseconds) - self.nanoseconds[SYNC]


class Steps:
    """Counts steps that run from one release to the next.

    The *release* is the end of the last collective of a step, when all ranks are let go together.
    It is only known afterwards: `release` marks each candidate, and `complete`, called when the
    next step has visibly begun, commits up to the last mark. What came after it belongs to the
    next step, so that a delay after the collective is not charged to those who wait for it.

    `totals` and `floor_seconds` may be read from another thread: the state is one list, replaced
    by one slice assignment.
    """

    def __init__(self, clock: StageClock, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._released = False
        self._at_release = [0] * len(STAGES)
        self._total = self._waited = self._steps = 0
        self._busy_squared = 0.0
        # Stage nanoseconds, then steps, sum of squared busy seconds, time of the last step.
        self._committed: list[float] = [0] * (len(STAGES) + 3)
        self._waits = [0] * RING
        self._wait_times = [0.0] * RING

    def begin(self) -> None:
        """Start counting, at the first sign of training: what came before is start-up."""
        self._released = False  # A collective of the start-up ends no step.
        self._clock.switch(self._clock.stage)
        self._clock.nanoseconds[:] = [0] * len(STAGES)

    def release(self) -> None:
        """Mark the end of a collective; call it right after the clock left `sync`."""
        self._at_release[:] = self._clock.nanoseconds
        self._released = True

    def complete(self) -> None:
        """Commit one step up to the last release, or up to now where nothing was synchronised."""
        if not self._released:
            self._clock.switch(self._clock.stage)
            self.release()
        self._released = False
        reached = self._at_release
        total, waited = sum(reached), reached[SYNC]
        wait = waited - self._waited
        busy_seconds = (total - self._total - wait) / 1e9
        self._total, self._waited = total, waited
        now = self._wall()
        slot = self._steps % RING
        self._waits[slot] = wait
        self._wait_times[slot] = now
        self._steps += 1
        self._busy_squared += busy_seconds * busy_seconds
        self._committed[:] = (*reached, self._steps, self._busy_squared, now)

    def totals(self) -> Totals:
        """Return the counters over all whole steps so far."""
        *nanoseconds, steps, busy_squared, last_step = self._committed[:]
        return Totals(
            nanoseconds=tuple(int(value) for value in nanoseconds),
            steps=int(steps),
            busy_seconds_squared=busy_squared,
            last_step_timestamp_seconds=last_step or None,
        )

    def floor_seconds(self) -> float | None:
        """Return the 2 % quantile of the exposed wait of the last minute's steps.

        That is what communication alone costs: a rank that is last to arrive waits for nobody.
        None while no step of the last minute is known.
        """
        oldest = self._wall() - FLOOR_WINDOW_SECONDS
        waits = sorted(
            wait
            for wait, at in zip(self._waits[:], self._wait_times[:], strict=True)
            if at > oldest
        )
        if not waits:
            return None
        return waits[int(FLOOR_QUANTILE * len(waits))] / 1e9

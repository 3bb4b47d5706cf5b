"""The stage clock: splits a thread's time among stages, nothing left out, nothing twice."""

import time
from collections.abc import Callable

from rank_probe.stages import OTHER, STAGES


class StageClock:
    """Cumulative nanoseconds per stage of one thread, the owner.

    Only the owner calls `switch`, `enter` and `leave`; there is no lock. Other threads may read
    `nanoseconds`, `stage` and `since`, each a single reference, at any time. Stages nest: entering
    one suspends the one around it, so the stages never overlap and add up to wall time.
    """

    __slots__ = ("_now", "_outer", "nanoseconds", "since", "stage")

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._outer: list[int] = []
        self.nanoseconds = [0] * len(STAGES)
        self.stage = OTHER
        self.since = now()

    def switch(self, stage: int) -> None:
        """Charge the time since the last boundary to the current stage, go on in *stage*."""
        now = self._now()
        self.nanoseconds[self.stage] += now - self.since
        self.since = now
        self.stage = stage

    def enter(self, stage: int) -> None:
        """Suspend the current stage for *stage*, until `leave`."""
        # As `switch`, written out: a call more is a tenth of what a boundary costs.
        now = self._now()
        current = self.stage
        self._outer.append(current)
        self.nanoseconds[current] += now - self.since
        self.since = now
        self.stage = stage

    def leave(self) -> None:
        """Go back to the stage that the last `enter` suspended."""
        self.switch(self._outer.pop() if self._outer else OTHER)

    def rename(self, stage: int) -> None:
        """Call the time since the last boundary *stage*, unless that is within an `enter`."""
        if not self._outer:
            self.stage = stage

    @property
    def depth(self) -> int:
        """How many stages are suspended."""
        return len(self._outer)

    def unwind(self, depth: int) -> None:
        """Leave stages until *depth* are suspended; for blocks whose end was never reported."""
        while len(self._outer) > depth:
            self.leave()

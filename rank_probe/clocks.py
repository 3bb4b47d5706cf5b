"""The stage clock: notes where one thread's stages begin; the sums are made later."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from rank_probe.stages import OTHER

# What a boundary may be besides the beginning of a stage, in the bits above the stage's number.
STAGE_BITS: Final = 15
BEGIN: Final = 16  # counting begins here: the unfinished step before it is none
RELEASE: Final = 32  # a wait for other ranks ended here
COMPLETE: Final = 64  # the step is over: it ended at the last release, or here without one


class Boundaries(Protocol):
    """Who else wants each boundary when it happens: a device's timeline."""

    def boundary(self, mark: int) -> None:
        """Take the boundary *mark*, a stage's number with its marks."""


class StageClock:
    """The boundaries between the stages of one thread, the owner, on a tape.

    *tape* is flat: a mark (stage and bits), its nanoseconds, the next mark... Appending two numbers
    is all that happens in the training loop; `steps.Steps` adds them up many boundaries at a time,
    which costs a fraction of adding each in caches that a model has just emptied.

    Only the owner calls the methods; there is no lock. Another thread may read *stage*
    and take entries off the tape's front. Stages nest: entering one suspends the one around it, so
    stages never overlap and add up to wall time.
    """

    __slots__ = ("_append", "_now", "_outer", "device", "stage", "tape")

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._outer: list[int] = []
        self.tape: list[int] = []
        self._append = self.tape.append
        self.device: Boundaries | None = None
        self.stage = OTHER

    def switch(self, stage: int, marks: int = 0) -> None:
        """Go on in *stage* instead of the current one."""
        self.stage = stage
        append = self._append
        append(stage | marks)
        append(self._now())
        if self.device is not None:
            self.device.boundary(stage | marks)

    def enter(self, stage: int, marks: int = 0) -> None:
        """Suspend the current stage for *stage*, until `leave`."""
        self._outer.append(self.stage)
        # As `switch`, written out here and below: a call more is a third of a boundary's price.
        self.stage = stage
        append = self._append
        append(stage | marks)
        append(self._now())
        if self.device is not None:
            self.device.boundary(stage | marks)

    def leave(self, marks: int = 0, outermost: int | None = None) -> None:
        """Go back to the stage that the last `enter` suspended.

        Where nothing else is suspended, go on in *outermost* instead, if that is given.
        """
        outer = self._outer
        stage = outer.pop() if outer else OTHER
        if outermost is not None and not outer:
            stage = outermost
        self.stage = stage
        append = self._append
        append(stage | marks)
        append(self._now())
        if self.device is not None:
            self.device.boundary(stage | marks)

    @property
    def depth(self) -> int:
        """How many stages are suspended."""
        return len(self._outer)

    def unwind(self, depth: int) -> None:
        """Leave stages until *depth* are suspended; for blocks whose end was never reported."""
        while len(self._outer) > depth:
            self.leave()

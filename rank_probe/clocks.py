"""The stage clock: records where one thread's stages begin; others sum them up later."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from rank_probe.stages import OTHER

# Marks of a boundary, in the bits above the stage's number.
STAGE_BITS: Final = 15
BEGIN: Final = 16  # counting begins here: the step so far is incomplete
RELEASE: Final = 32  # a wait for other ranks ended here
COMPLETE: Final = 64  # the step is over: it ended at the last release, or here without one


class Boundaries(Protocol):
    """Receives each boundary when it happens: a device's timeline."""

    def boundary(self, mark: int) -> None:
        """Record the boundary *mark*, a stage's number with its marks."""


class StageClock:
    """The boundaries between the stages of one thread, the owner, on a tape.

    *tape* is flat: a mark (stage and bits), its nanoseconds, the next mark... The training loop
    only appends the two, both or neither. `steps.Steps` sums up many boundaries at a time, which
    costs a fraction of handling each one with caches that a model has just emptied.

    Only the owner calls the methods; there is no lock. Another thread may read *stage* and remove
    entries from the front of the tape. Stages nest: entering one suspends the outer one, so stages
    never overlap and add up to wall time.
    """

    __slots__ = ("note", "now", "outer", "stage", "tape")

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.outer: list[int] = []  # suspended stages
        self.tape: list[int] = []
        # Appends a mark and its nanoseconds: both or, if the user interrupts, neither.
        self.note: Callable[[tuple[int, int]], None] = self.tape.extend
        self.stage = OTHER

    def also_tell(self, device: Boundaries) -> None:
        """Also send each boundary to *device* from now on."""
        extend = self.tape.extend

        def note(boundary: tuple[int, int]) -> None:
            extend(boundary)
            device.boundary(boundary[0])

        self.note = note

    def switch(self, stage: int, marks: int = 0) -> None:
        """Replace the current stage by *stage*."""
        self.stage = stage
        self.note((stage | marks, self.now()))

    def enter(self, stage: int, marks: int = 0) -> None:
        """Suspend the current stage for *stage*, until `leave`."""
        self.outer.append(self.stage)
        self.switch(stage, marks)

    def leave(self, marks: int = 0) -> None:
        """Return to the stage that the last `enter` suspended."""
        self.switch(self.outer.pop() if self.outer else OTHER, marks)

    @property
    def depth(self) -> int:
        """How many stages are suspended."""
        return len(self.outer)

    def unwind(self, depth: int) -> None:
        """Leave stages until *depth* are suspended; for blocks that were never left."""
        while len(self.outer) > depth:
            self.leave()

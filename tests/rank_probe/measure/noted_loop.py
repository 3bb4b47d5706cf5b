"""A training loop as the hooks note it, and the stages that come of it."""

from collections.abc import Iterable

from rank_probe.measure import events as e
from rank_probe.measure.loop_state import LoopState
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits
from rank_probe.wire.stages import STAGES
from tests.rank_probe.fakes import FakeTime

MS = 1_000_000

# What a loop does: an event, or milliseconds of work, which are floats.
Does = tuple[int | float, ...]

FETCH: Does = (e.FETCH, 5.0, e.FETCHED)
END_OF_LOADER: Does = (e.FETCH, e.EXHAUSTED)
BACKWARDS: Does = (e.BACKWARD_BEGINS, 10.0, e.GRADIENTS_READY, 2.0, e.BACKWARD_ENDED)
OPTIMIZE: Does = (e.OPTIMIZER_BEGINS, 1.0, e.OPTIMIZER_ENDED)
STEP: Does = (*FETCH, *BACKWARDS, *OPTIMIZE)


class Marks(WorkUnits):
    """Keeps what the timeline is told of its batches, and of backwards without a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def settle(self, marks: Iterable[int]) -> None:
        self.told += marks


class Job:
    """One rank's loop as the hooks note it, in fake milliseconds."""

    def __init__(self, *, automatic: bool = True) -> None:
        self.time = FakeTime()
        self.wall = 1_000.0
        self._marks = Marks()
        self.timeline = Timeline(
            automatic=automatic, work=self._marks, now=self.time, wall=lambda: self.wall
        )
        self.steps = self.timeline.steps

    def run(self, *does: int | float) -> "Job":
        for each in does:
            if isinstance(each, float):
                self.time.pass_(round(each * MS))
            else:
                self.timeline.tape.note(each)
        return self

    @property
    def state(self) -> LoopState:
        return self.timeline.state

    def marked(self, bits: int) -> list[int]:
        """Return the marks so far, in order, each reduced to *bits*."""
        self.steps.fold()
        return [mark & bits for mark in self._marks.told if mark & bits]


def milliseconds(nanoseconds: tuple[int, ...]) -> dict[str, float]:
    """Return the stages that occurred."""
    return {name: ns / MS for name, ns in zip(STAGES, nanoseconds, strict=True) if ns}

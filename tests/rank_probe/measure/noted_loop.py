"""A training loop as the hooks note it, and the stages that come of it."""

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import packed
from rank_probe.measure.interpreter import Interpreter
from rank_probe.measure.loop_state import LoopState
from rank_probe.measure.steps import Steps
from rank_probe.wire.stages import STAGES

MS = 1_000_000

# What a loop does: an event, or milliseconds of work, which are floats.
Does = tuple[int | float, ...]

FETCH: Does = (e.FETCH, 5.0, e.FETCHED)
END_OF_LOADER: Does = (e.FETCH, e.EXHAUSTED)
BACKWARDS: Does = (e.BACKWARD_BEGINS, 10.0, e.GRADIENTS_READY, 2.0, e.BACKWARD_ENDED)
OPTIMIZE: Does = (e.OPTIMIZER_BEGINS, 1.0, e.OPTIMIZER_ENDED)
STEP: Does = (*FETCH, *BACKWARDS, *OPTIMIZE)


class Job:
    """One rank's loop as the hooks note it, in fake milliseconds."""

    def __init__(self, *, automatic: bool = True) -> None:
        self._interpreter = Interpreter(LoopState(automatic=automatic, finds_steps=automatic))
        self._noted: list[int] = []
        self.now = 1_000
        self.wall = 1_000.0
        self.marks: list[int] = []
        self.steps = Steps(self._boundaries, lambda: self.now, lambda: self.wall, self.marks.extend)

    def _boundaries(self) -> bytes:
        taken, self._noted = self._noted, []
        return self._interpreter.read(packed(taken))

    def run(self, *does: int | float) -> "Job":
        for each in does:
            if isinstance(each, float):
                self.now += round(each * MS)
            else:
                self._noted += (each, self.now)
        return self

    @property
    def state(self) -> LoopState:
        self.steps.fold()
        return self._interpreter.state

    def marked(self, bits: int) -> list[int]:
        """Return those of *bits* that were told, in order."""
        self.steps.fold()
        return [mark & bits for mark in self.marks if mark & bits]


def milliseconds(nanoseconds: tuple[int, ...]) -> dict[str, float]:
    """Return the stages that occurred."""
    return {name: ns / MS for name, ns in zip(STAGES, nanoseconds, strict=True) if ns}

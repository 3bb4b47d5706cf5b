"""Step vectors: single steps, kept for whoever asks until they are taken."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

# Kept for a taker; ten seconds of the fastest loops.
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
        self.waiting: deque[StepVector] = deque(maxlen=MOST)

    def take(self) -> list[StepVector]:
        """Return the steps since the last call, and forget them; for one thread."""
        self._fold()
        taken: list[StepVector] = []
        while self.waiting:
            taken.append(self.waiting.popleft())
        return taken

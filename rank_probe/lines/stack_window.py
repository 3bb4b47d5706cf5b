"""The latest samples of a late rank's stack, counted by stage and line."""

from collections import Counter, deque
from typing import Final, NamedTuple

from rank_probe.lines.user_code import CodeLine

# Of the latest work: five minutes, as in the judge's mean, if the rank never waits.
WINDOW_SAMPLES: Final = 6_000
# Fewer samples of a stage say nothing about it.
LEAST_SAMPLES: Final = 20
# A line with a smaller share of its stage explains nothing.
LEAST_SHARE: Final = 0.01
# Another line takes the first place with so many times its samples: each first line is a series.
OVERTAKES: Final = 1.2


class StackSample(NamedTuple):
    """One look at the training thread; *line* is None if none of the user's is on its stack.

    *weight* is how much time it stands for.
    """

    stage: str
    line: CodeLine | None
    is_fetching: bool
    weight: int = 1


class LineShare(NamedTuple):
    """A line, and its *share* (0 to 1) of the time in *stage*."""

    stage: str
    line: CodeLine
    share: float


class StackWindow:
    """The last *most* samples; for one thread."""

    def __init__(self, most: int = WINDOW_SAMPLES) -> None:
        self._most = most
        self._samples: deque[StackSample] = deque()
        self._taken = Counter[str]()
        self._stages = Counter[str]()
        self._fetching = Counter[str]()
        self._lines = Counter[tuple[str, CodeLine]]()
        self._first: tuple[str, CodeLine] | None = None

    def add(self, sample: StackSample) -> None:
        """Count *sample*, and forget the oldest if there are too many."""
        self._samples.append(sample)
        self._count(sample, 1)
        if len(self._samples) > self._most:
            self._count(self._samples.popleft(), -1)

    def samples_of(self, stage: str) -> int:
        """Return how many samples of *stage* there are."""
        return self._taken[stage]

    def lines(self, first_stage: str, most: int) -> list[LineShare]:
        """Return the *most* frequent lines: those of *first_stage*, then those of the others."""
        counted = [each for each in self._lines if self._taken[each[0]] >= LEAST_SAMPLES]
        counted.sort(key=lambda each: (each[0] != first_stage, -self._lines[each], each))
        if counted:
            self._first = self._steady(counted[0])
            counted.remove(self._first)
            counted.insert(0, self._first)
        return [
            LineShare(stage, line, self._lines[stage, line] / self._stages[stage])
            for stage, line in counted[:most]
            if self._lines[stage, line] >= LEAST_SHARE * self._stages[stage]
        ]

    def iterating_share(self, stage: str) -> float | None:
        """Return the share of *stage*'s samples in which the loop was fetching its next item."""
        if self._taken[stage] < LEAST_SAMPLES:
            return None
        return self._fetching[stage] / self._stages[stage]

    def _steady(self, leader: tuple[str, CodeLine]) -> tuple[str, CodeLine]:
        """Return what comes first: *leader*, unless it is hardly ahead of what came first before.

        Two lines of equal cost must not take turns.
        """
        before = self._first
        if before is None or before[0] != leader[0]:
            return leader
        is_ahead = self._lines[leader] > OVERTAKES * self._lines[before]
        return leader if is_ahead or not self._lines[before] else before

    def _count(self, sample: StackSample, by: int) -> None:
        self._taken[sample.stage] += by
        by *= sample.weight
        self._stages[sample.stage] += by
        self._fetching[sample.stage] += by * sample.is_fetching
        if sample.line is not None:
            key = sample.stage, sample.line
            self._lines[key] += by
            if not self._lines[key]:
                del self._lines[key]

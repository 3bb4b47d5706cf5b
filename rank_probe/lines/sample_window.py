"""The latest samples of a late rank's thread, counted by stage, by line and by state."""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

from rank_probe.lines.user_code import CodeLine

# Of the latest work: five minutes, as in the judge's mean, if the rank never waits.
WINDOW_SAMPLES: Final = 6_000
# Fewer samples of a stage say nothing about its lines, or its states.
LEAST_SAMPLES: Final = 20
LEAST_LOOKS: Final = 10
# One sample counts as at most this many, however much time it stands for.
MOST_COUNTED: Final = 7
# A line or state with a smaller share of its stage explains nothing.
LEAST_SHARE: Final = 0.01
# Another line becomes first at this many times the leader's weight: each first line is a series.
OVERTAKES: Final = 1.2
# Shares are integers, so subtracting a forgotten sample leaves exactly zero.
WHOLE: Final = 1_000

Key = TypeVar("Key", bound=Hashable)


class StateShare(NamedTuple):
    """A *share* of the time that one sample stands for: a state, the user's line, and its mount."""

    state: str
    mount: str
    line: CodeLine | None
    share: int


class StackSample(NamedTuple):
    """One look at the training thread; *line* is None if none of the user's is on its stack.

    *weight* is the time it stands for: WHOLE, or more if it covers more time than others. *parts*
    say how that time was spent, if known; their shares add up to *weight*.
    """

    stage: str
    line: CodeLine | None
    is_fetching: bool
    weight: int = WHOLE
    parts: tuple[StateShare, ...] = ()


class LineShare(NamedTuple):
    """A line, and its *share* (0 to 1) of the time in *stage*."""

    stage: str
    line: CodeLine
    share: float


class Spent(NamedTuple):
    """A *share* (0 to 1) of the time in *stage*; *where* is a mount, else a line, else None."""

    stage: str
    state: str
    share: float
    where: str | CodeLine | None


class SampleWindow:
    """The last *most* samples; for one thread."""

    def __init__(self, most: int = WINDOW_SAMPLES) -> None:
        self._most = most
        self._samples: deque[StackSample] = deque()
        self._taken = Counter[str]()
        self._stages = Counter[str]()
        self._fetching = Counter[str]()
        self._lines = Counter[tuple[str, CodeLine]]()
        self._first: tuple[str, CodeLine] | None = None
        self._looks = Counter[str]()
        self._states = Counter[tuple[str, str]]()
        self._places = Counter[tuple[str, str, str | CodeLine]]()

    def add(self, sample: StackSample) -> None:
        """Count *sample*, and forget the oldest if there are too many."""
        self._samples.append(sample)
        self._count(sample, 1)
        if len(self._samples) > self._most:
            self._count(self._samples.popleft(), -1)

    def rename_fetches(self, stage: str, to: str) -> None:
        """Count what was fetching in *stage* as samples of the stage *to*."""
        for _ in range(len(self._samples)):
            sample = self._samples.popleft()
            self._count(sample, -1)
            is_meant = sample.is_fetching and sample.stage == stage
            self.add(sample._replace(stage=to) if is_meant else sample)

    def has_answer(self, stage: str) -> bool:
        """Whether lines of *stage* are there, and its states if they can be told."""
        taken = self._taken[stage]
        has_states = self._looks[stage] >= LEAST_LOOKS or taken >= 2 * LEAST_SAMPLES
        return taken >= LEAST_SAMPLES and has_states

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

    def states(self, first_stage: str, most: int) -> list[Spent]:
        """Return the *most* important shares: those of *first_stage*, then those of the others."""
        counted = [
            (stage, state)
            for (stage, state), weight in self._states.items()
            if self._looks[stage] >= LEAST_LOOKS and weight >= LEAST_SHARE * self._stages[stage]
        ]
        counted.sort(key=lambda each: (each[0] != first_stage, -self._states[each], each))
        places = self._most_frequent_places()
        return [
            Spent(each[0], each[1], self._states[each] / self._stages[each[0]], places[each])
            for each in counted[:most]
        ]

    def iterating_share(self, stage: str) -> float | None:
        """Return the share of *stage*'s samples in which the loop was fetching its next item."""
        if self._taken[stage] < LEAST_SAMPLES:
            return None
        return self._fetching[stage] / self._stages[stage]

    def _steady(self, leader: tuple[str, CodeLine]) -> tuple[str, CodeLine]:
        """Return *leader*, or the previous first line if *leader* is hardly ahead of it.

        Two lines of equal cost must not alternate in first place.
        """
        before = self._first
        if before is None or before[0] != leader[0]:
            return leader
        is_ahead = self._lines[leader] > OVERTAKES * self._lines[before]
        return leader if is_ahead or not self._lines[before] else before

    def _most_frequent_places(self) -> dict[tuple[str, str], str | CodeLine | None]:
        found: dict[tuple[str, str], str | CodeLine | None] = dict.fromkeys(self._states)
        best = Counter[tuple[str, str]]()
        for (stage, state, where), weight in self._places.items():
            if weight > best[stage, state]:
                best[stage, state] = weight
                found[stage, state] = where
        return found

    def _count(self, sample: StackSample, by: int) -> None:
        stage, weight = sample.stage, by * sample.weight
        counted = by * min(sample.weight // WHOLE, MOST_COUNTED)
        self._taken[stage] += counted
        self._stages[stage] += weight
        self._fetching[stage] += weight * sample.is_fetching
        if sample.line is not None:
            _add(self._lines, (stage, sample.line), weight)
        if sample.parts:
            self._looks[stage] += counted
        for part in sample.parts:
            _add(self._states, (stage, part.state), by * part.share)
            where = part.mount or part.line
            if where:
                _add(self._places, (stage, part.state, where), by * part.share)


def _add(counter: Counter[Key], key: Key, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]

"""The latest looks at a late rank's thread: its time in each stage, split by state."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from rank_probe.lines.stack_window import LEAST_SHARE, WINDOW_SAMPLES
from rank_probe.lines.user_code import CodeLine

# Fewer looks at a stage say nothing about it.
LEAST_LOOKS: Final = 10
# Shares are counted in whole numbers, so that what is forgotten leaves nothing behind.
WHOLE: Final = 1_000


class StateShare(NamedTuple):
    """A *share* of the time that one look stands for: a state, the user's line, and its mount."""

    state: str
    mount: str
    line: CodeLine | None
    share: int


class Looked(NamedTuple):
    """One look of a few milliseconds, all of them in *stage*.

    The shares of its parts add up to WHOLE, or to more if it stands for more time than others.
    """

    stage: str
    parts: tuple[StateShare, ...]


class Spent(NamedTuple):
    """A *share* (0 to 1) of the time in *stage*; *where* is a mount, else a line, else None."""

    stage: str
    state: str
    share: float
    where: str | CodeLine | None


class StateWindow:
    """The last *most* looks; for one thread."""

    def __init__(self, most: int = WINDOW_SAMPLES) -> None:
        self._most = most
        self._looks: deque[Looked] = deque()
        self._stages = Counter[str]()
        self._weights = Counter[tuple[str, str]]()
        self._places = Counter[tuple[str, str, str | CodeLine]]()

    def add(self, looked: Looked) -> None:
        """Count *looked*, and forget the oldest if there are too many."""
        self._looks.append(looked)
        self._count(looked, 1)
        if len(self._looks) > self._most:
            self._count(self._looks.popleft(), -1)

    def looks_at(self, stage: str) -> int:
        """Return how many looks at *stage* there are."""
        return self._stages[stage]

    def spent(self, first_stage: str, most: int) -> list[Spent]:
        """Return the *most* important shares: those of *first_stage*, then those of the others."""
        totals = Counter[str]()
        for (stage, _), weight in self._weights.items():
            totals[stage] += weight
        counted = [
            (stage, state)
            for (stage, state), weight in self._weights.items()
            if self._stages[stage] >= LEAST_LOOKS and weight >= LEAST_SHARE * totals[stage]
        ]
        counted.sort(key=lambda each: (each[0] != first_stage, -self._weights[each], each))
        places = self._most_frequent()
        return [
            Spent(stage, state, self._weights[stage, state] / totals[stage], places[stage, state])
            for stage, state in counted[:most]
        ]

    def _most_frequent(self) -> dict[tuple[str, str], str | CodeLine | None]:
        found: dict[tuple[str, str], str | CodeLine | None] = dict.fromkeys(self._weights)
        best = Counter[tuple[str, str]]()
        for (stage, state, where), weight in self._places.items():
            if weight > best[stage, state]:
                best[stage, state] = weight
                found[stage, state] = where
        return found

    def _count(self, looked: Looked, by: int) -> None:
        self._stages[looked.stage] += by
        for part in looked.parts:
            _add(self._weights, (looked.stage, part.state), by * part.share)
            where = part.mount or part.line
            if where:
                _add(self._places, (looked.stage, part.state, where), by * part.share)


def _add(counter: Counter, key: tuple, by: int) -> None:  # type: ignore[type-arg]
    counter[key] += by
    if not counter[key]:
        del counter[key]


def whole(shares: Sequence[float]) -> list[int]:
    """Return *shares* of 1 as parts of WHOLE."""
    return [round(WHOLE * share) for share in shares]

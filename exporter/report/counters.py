"""How much counters of ranks grew, across the restarts of their processes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from exporter.report.history import Grid, History, Line, grid
from exporter.report.spans import Span, within

# That many values are a second's work, and fit into an answer of Prometheus.
MOST_VALUES: Final = 1_000_000
# After a hang, the ranks count the step that hung; its time is lost to the hang already.
SETTLING_SECONDS: Final = 60.0


def growth(
    history: History,
    expression: str,
    labels: Sequence[str],
    stretches: Sequence[Span],
    times: Grid,
    series: int,
    from_nothing: bool,
) -> dict[tuple[str, ...], float]:
    """Return how much the counters of *expression* grew during *stretches*, by *labels*.

    *series* is about how many there are: many are read less often than *times* says.
    *from_nothing*: they were not there before the first stretch, so they began at 0.
    Raises Trouble.
    """
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for n, stretch in enumerate(stretches):
        most = MOST_VALUES / max(series, 1)
        least = (stretch[1] - stretch[0]) / most
        fine = grid(*stretch, times.step_seconds, least)
        for line in history.lines(expression, fine):
            is_new = line.times[0] > fine.begin + fine.step_seconds or (n == 0 and from_nothing)
            found[tuple(line[label] for label in labels)] += _grown(line, is_new)
    return found


def stretches(alive: Span, hung: Sequence[Span]) -> list[Span]:
    """Return the parts of *alive* outside *hung*, each beginning a little after a hang."""
    begin, found = alive[0], []
    for a, b in within(hung, *alive):
        found.append((begin, a))
        begin = b + SETTLING_SECONDS
    found.append((begin, alive[1]))
    return [(a, b) for a, b in found if a < b]


def _grown(line: Line, is_new: bool) -> float:
    """Return the growth of one counter; a fall is a new process, which began at 0."""
    first = 0.0 if is_new else line.values[0]
    return sum(_steps([first, *line.values]))


def _steps(values: Sequence[float]) -> Iterable[float]:
    for before, after in pairwise(values):
        yield after - before if after >= before else after

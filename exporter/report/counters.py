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
# Between its first growth and the first value are a scrape and a step.
UNSEEN_STEPS: Final = 2.0


def growth(
    history: History,
    expression: str,
    labels: Sequence[str],
    stretches: Sequence[Span],
    times: Grid,
    series: int,
    most_per_second: float,
) -> dict[tuple[str, ...], float]:
    """Return how much the counters of *expression* grew during *stretches*, by *labels*.

    *series* is about how many there are: many are read less often than *times* says. None can grow
    faster than by *most_per_second*: what has more when it is first seen has grown before. Raises
    Trouble.
    """
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for n, stretch in enumerate(stretches):
        least = (stretch[1] - stretch[0]) * max(series, 1) / MOST_VALUES
        step = grid(*stretch, times.step_seconds, least).step_seconds
        for line in _lines(history, expression, stretch, step):
            is_new = n == 0 or line.times[0] > stretch[0] + step
            unseen = most_per_second * UNSEEN_STEPS * step if is_new else 0.0
            found[tuple(line[label] for label in labels)] += _grown(line, unseen)
    return found


def stretches(alive: Span, hung: Sequence[Span]) -> list[Span]:
    """Return the parts of *alive* outside *hung*, each beginning a little after a hang."""
    begin, found = alive[0], []
    for a, b in within(hung, *alive):
        found.append((begin, a))
        begin = b + SETTLING_SECONDS
    found.append((begin, alive[1]))
    return [(a, b) for a, b in found if a < b]


def _lines(history: History, expression: str, stretch: Span, step: float) -> list[Line]:
    """Return the counters from the begin of *stretch* to its very end."""
    begin, end = stretch
    found = {
        tuple(sorted(line.labels.items())): line
        for line in history.lines(expression, Grid(begin, end, step))
    }
    if (end - begin) % step:
        for last in history.lines(expression, Grid(end, end, step)):
            line = found.setdefault(tuple(sorted(last.labels.items())), Line(last.labels))
            line.times += last.times
            line.values += last.values
    return list(found.values())


def _grown(line: Line, unseen: float) -> float:
    """Return the growth of one counter, which may have grown by *unseen* before its first value.

    A fall is a new process, which began at 0.
    """
    first = line.values[0]
    first = 0.0 if first <= unseen else first
    return sum(_steps([first, *line.values]))


def _steps(values: Sequence[float]) -> Iterable[float]:
    for before, after in pairwise(values):
        yield after - before if after >= before else after

"""Reads weeks of a series from a Prometheus, in as many queries as its limits make necessary."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from rankskew.client.fetch import Trouble
from rankskew.client.fields import number, objects, text
from rankskew.client.prometheus import Prometheus, Series
from rankskew.times import Span, of_points, within

# Prometheus refuses more per series and query (web/api/v1/api.go).
MOST_POINTS: Final = 11_000
# A fortnight every 15 s takes eight; a year every 15 s would take 192.
MOST_QUERIES: Final = 24
# Below this many points a query that is too much stays too much.
FEWEST_POINTS: Final = 100
TOO_MUCH: Final = ("too many samples", "exceeds the maximum", "no answer within", "timed out")
# Weeks take longer than the second that a screen waits; Prometheus gives up after two minutes.
TIMEOUT_SECONDS: Final = 125.0
# That many values are a second's work, and fit into an answer of Prometheus.
MOST_VALUES: Final = 1_000_000
# After a hang, the ranks count the step that hung; its time is lost to the hang already.
SETTLING_SECONDS: Final = 60.0
# Between its first growth and the first value are a scrape and a step.
UNSEEN_STEPS: Final = 2.0

# What docs/operating.md recommends.
USUAL_INTERVAL_SECONDS: Final = 15.0

# A time in Unix seconds and a value.
Point = tuple[float, float]


def rule_interval(prometheus: Prometheus) -> float:
    """Return how often our alerts are evaluated, in seconds; the usual interval if nobody says."""
    try:
        groups = prometheus.alert_groups()
    except Trouble:  # Some systems that answer queries do not know this one.
        return USUAL_INTERVAL_SECONDS
    known = [
        number(group.get("interval"))
        for group in groups
        if any(
            (text(rule.get("name")) or "").startswith("Rankskew")
            for rule in objects(group.get("rules"))
        )
    ]
    return min(filter(None, known), default=USUAL_INTERVAL_SECONDS)


@dataclass(frozen=True, slots=True)
class Grid:
    """The times from *begin* to *end*, multiples of *step_seconds*, at which series are read.

    They are the same whenever somebody asks, so an incident begins at the same time in each report.
    """

    begin: float
    end: float
    step_seconds: float

    def chunks(self) -> Iterator[tuple[float, float]]:
        """Yield the first and last time of each query."""
        begin = self.begin
        while begin <= self.end:
            last = min(begin + (MOST_POINTS - 1) * self.step_seconds, self.end)
            yield begin, last
            begin = last + self.step_seconds


def grid(begin: float, end: float, interval_seconds: float, least_seconds: float = 0.0) -> Grid:
    """Return the times of a grid that takes at most MOST_QUERIES, and whole multiples of a step.

    The step is the *interval_seconds* of the rules, or a multiple of it: if that would be too many
    points, or to be at least *least_seconds*.
    """
    most = MOST_POINTS * MOST_QUERIES
    times = max(1, ceil((end - begin) / (interval_seconds * most)))
    times = max(times, ceil(least_seconds / interval_seconds - 1e-9))
    step = interval_seconds * times
    # The last time stands for the step that begins there, which must not be in the future.
    return Grid(ceil(begin / step) * step, (ceil(end / step) - 1) * step, step)


class PastSeries:
    """What *prometheus* remembers."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    def read(self, expression: str, *times: Grid) -> list[Series]:
        """Return the series of *expression* at *times*, their name left out; raises Trouble."""
        found: dict[frozenset[tuple[str, str]], list[Point]] = defaultdict(list)
        for each in times:
            for begin, end in each.chunks():
                for series in self._read(expression, begin, end, each.step_seconds):
                    found[frozenset(series.labels.items())] += series.points
        return [Series("", dict(labels), points) for labels, points in found.items()]

    def _read(self, expression: str, begin: float, end: float, step: float) -> list[Series]:
        """Return what *expression* has then; what is too much is read in two halves."""
        try:
            return self._prometheus.query_range(expression, begin, end, step)
        except Trouble as trouble:
            points = round((end - begin) / step)
            if points < FEWEST_POINTS or not any(words in str(trouble) for words in TOO_MUCH):
                raise
        middle = begin + (points // 2) * step
        return [
            *self._read(expression, begin, middle, step),
            *self._read(expression, middle + step, end, step),
        ]


def spans_of(series: Iterable[Series], step_seconds: float) -> list[Span]:
    """Return when any of the *series*, read every *step_seconds*, has a value."""
    return of_points((at for each in series for at, _ in each.points), step_seconds)


# ---- Counters ----------------------------------------------------------------------------------


def growth(
    history: PastSeries,
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
    for n, (begin, end) in enumerate(stretches):
        least = (end - begin) * max(series, 1) / MOST_VALUES
        step = grid(begin, end, times.step_seconds, least).step_seconds
        # Up to the very end.
        last = [Grid(end, end, step)] if (end - begin) % step else []
        for each in history.read(expression, Grid(begin, end, step), *last):
            is_new = n == 0 or each.points[0][0] > begin + step
            unseen = most_per_second * UNSEEN_STEPS * step if is_new else 0.0
            grown = _grown([value for _, value in each.points], unseen)
            found[tuple(each[label] for label in labels)] += grown
    return found


def stretches(alive: Span, hung: Sequence[Span]) -> list[Span]:
    """Return the parts of *alive* outside *hung*, each beginning a little after a hang."""
    begin, found = alive[0], []
    for a, b in within(hung, *alive):
        found.append((begin, a))
        begin = b + SETTLING_SECONDS
    found.append((begin, alive[1]))
    return [(a, b) for a, b in found if a < b]


def _grown(values: Sequence[float], unseen: float) -> float:
    """Return the growth of one counter, which may have grown by *unseen* before its first value.

    A fall is a new process, which began at 0.
    """
    first = 0.0 if values[0] <= unseen else values[0]
    steps = pairwise([first, *values])
    return sum(after - before if after >= before else after for before, after in steps)

"""Reads weeks of a series from a Prometheus, in as many queries as its limits make necessary."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from rankskew.client.prometheus import Prometheus, Series
from rankskew.times import Span, merged

# Prometheus refuses more per series and query (web/api/v1/api.go).
MOST_POINTS: Final = 11_000
# A fortnight every 15 s takes eight; a year every 15 s would take 192.
MOST_QUERIES: Final = 24
# Weeks take longer than the second that a screen waits; Prometheus gives up after two minutes.
TIMEOUT_SECONDS: Final = 125.0
# The interval at which rules are evaluated; values of slower rules stay until their next one.
INTERVAL_SECONDS: Final = 15.0

# A time in Unix seconds and a value.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Grid:
    """The times from *begin* to *end*, multiples of *step_seconds*, at which series are read.

    They do not depend on when a report is made, so that an incident begins at the same time in all.
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


def grid(begin: float, end: float, most_points: int = MOST_POINTS * MOST_QUERIES) -> Grid:
    """Return at most *most_points* times, whole multiples of a step.

    The step is INTERVAL_SECONDS, or a multiple of it if that would be too many points.
    """
    step = INTERVAL_SECONDS * max(1, ceil((end - begin) / (INTERVAL_SECONDS * most_points)))
    # The last time stands for the step that begins there, which must not be in the future.
    return Grid(ceil(begin / step) * step, (ceil(end / step) - 1) * step, step)


def read_past(prometheus: Prometheus, expression: str, times: Grid) -> list[Series]:
    """Return the series of *expression* at *times*, their name left out; raises Trouble."""
    found: dict[frozenset[tuple[str, str]], list[Point]] = defaultdict(list)
    for begin, end in times.chunks():
        for series in prometheus.query_range(expression, begin, end, times.step_seconds):
            found[frozenset(series.labels.items())] += series.points
    return [Series("", dict(labels), points) for labels, points in found.items()]


def spans_of(series: Iterable[Series], step_seconds: float) -> list[Span]:
    """Return when any of the *series*, read every *step_seconds*, has a value.

    Each value stands for the step that begins there.
    """
    times = {at for each in series for at, _ in each.points}
    return merged((at, at + step_seconds) for at in times)

"""Reads weeks of a series from a Prometheus, in as many queries as its limits make necessary."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from exporter.client.fetch import Trouble
from exporter.client.prometheus import Prometheus

# Prometheus refuses more per series and query (web/api/v1/api.go).
MOST_POINTS: Final = 11_000
# A fortnight every 15 s takes eight; a year every 15 s would take 192.
MOST_QUERIES: Final = 24
# Below this many points a query that is too much stays too much.
FEWEST_POINTS: Final = 100
TOO_MUCH: Final = ("too many samples", "exceeds the maximum", "no answer within", "timed out")
# Weeks take longer than the second that a screen waits; Prometheus gives up after two minutes.
TIMEOUT_SECONDS: Final = 125.0

Labels = Mapping[str, str]


@dataclass(slots=True)
class Line:
    """The values of one series, at times in Unix seconds, in their order."""

    labels: Labels
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __getitem__(self, label: str) -> str:
        return self.labels.get(label, "")


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


class History:
    """What *prometheus* remembers."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    def lines(self, expression: str, times: Grid) -> list[Line]:
        """Return the series of *expression* at *times*, their name left out; raises Trouble."""
        found: dict[frozenset[tuple[str, str]], Line] = {}
        for begin, end in times.chunks():
            self._read(expression, begin, end, times.step_seconds, found)
        return list(found.values())

    def _read(
        self,
        expression: str,
        begin: float,
        end: float,
        step: float,
        found: dict[frozenset[tuple[str, str]], Line],
    ) -> None:
        """Add what *expression* has to *found*; what is too much is read in two halves."""
        try:
            series = self._prometheus.query_range(expression, begin, end, step)
        except Trouble as trouble:
            points = round((end - begin) / step)
            if points < FEWEST_POINTS or not any(words in str(trouble) for words in TOO_MUCH):
                raise
            middle = begin + (points // 2) * step
            self._read(expression, begin, middle, step, found)
            self._read(expression, middle + step, end, step, found)
            return
        for each in series:
            line = found.setdefault(frozenset(each.labels.items()), Line(each.labels))
            line.times += [at for at, _ in each.points]
            line.values += [value for _, value in each.points]

"""Which part of a period a Prometheus can tell about, and why not the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.report.history import Grid, History, grid
from exporter.report.spans import Span, of_points, seconds, without

# Recorded at each evaluation while any exporter shows a job or a GPU.
RULES_RUN: Final = "group(job:rankskew_job:group)"
SCRAPED: Final = "group(rankskew_exporter_build_info)"
ANYTHING: Final = "group(up)"
# Why nothing is known is told to the nearest ten minutes.
WHY_STEP_SECONDS: Final = 600.0
NO_DATA: Final = "no data: older than it keeps, or Prometheus did not run"
NO_RULES: Final = "the rules were not evaluated"
NO_EXPORTERS: Final = "no exporter answered"
# Shorter holes are restarts, and of no use to a reader.
LEAST_HOLE_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """When the rules were evaluated on readings of exporters, and the *holes* with their reasons.

    *watched_seconds* is how long that was, of *asked_seconds*.
    """

    asked: Span
    spans: Sequence[Span]
    holes: Sequence[tuple[Span, str]]

    @property
    def asked_seconds(self) -> float:
        """Return the length of the period that was asked for."""
        return self.asked[1] - self.asked[0]

    @property
    def watched_seconds(self) -> float:
        """Return how long alerts could fire."""
        return seconds(self.spans)


def read_coverage(history: History, times: Grid) -> Coverage:
    """Return what *history* can tell about *times*; raises Trouble."""
    asked = times.begin, times.end + times.step_seconds
    ruled = _spans(history, f"{RULES_RUN} and {SCRAPED}", times)
    rest = without([asked], ruled)
    holes = [hole for hole in rest if hole[1] - hole[0] >= LEAST_HOLE_SECONDS]
    if not holes:
        return Coverage(asked, ruled, [])
    coarse = grid(*asked, times.step_seconds, WHY_STEP_SECONDS)
    scraped = _spans(history, ANYTHING, coarse), _spans(history, SCRAPED, coarse)
    return Coverage(asked, ruled, [(hole, _why(hole, *scraped)) for hole in holes])


def _spans(history: History, expression: str, times: Grid) -> list[Span]:
    lines = history.lines(expression, times)
    return of_points((at for line in lines for at in line.times), times.step_seconds)


def _why(hole: Span, anything: Sequence[Span], scraped: Sequence[Span]) -> str:
    """Return the reason for most of *hole*."""
    long = hole[1] - hole[0]
    if seconds(without([hole], anything)) > long / 2:
        return NO_DATA
    return NO_EXPORTERS if seconds(without([hole], scraped)) > long / 2 else NO_RULES

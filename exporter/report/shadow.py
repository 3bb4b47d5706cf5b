"""The alerts of past weeks as they would have been, what they cost and what people said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.client.prometheus import Prometheus, selector
from exporter.report.confirmations import Confirmation, Said
from exporter.report.costs import Cost, Costs
from exporter.report.coverage import Coverage, read_coverage
from exporter.report.history import Grid, History, grid
from exporter.report.incidents import Firing, Incident, firings, incidents
from exporter.report.names import with_names
from exporter.report.paging import NOTE, Page, pages, sent
from exporter.report.precision import Precision, precision
from exporter.report.rules import Rules, read_rules
from exporter.report.spans import Span
from exporter.report.times import DAY_SECONDS, HOUR_SECONDS

# An incident that began before the period is followed back, at most so far.
BACK_SECONDS: Final = 14 * DAY_SECONDS
PIECE_SECONDS: Final = DAY_SECONDS
# GPUs come and go slowly: so many looks are enough.
WATCHED_POINTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Judged:
    """One *incident*, its *cost*, whether a page or a note would have been sent, and a verdict."""

    incident: Incident
    cost: Cost
    is_sent: bool
    confirmation: Confirmation | None

    @property
    def verdict(self) -> str | None:
        """Return what people said of it."""
        return self.confirmation.verdict if self.confirmation else None

    @property
    def pages(self) -> bool:
        """Return whether it would have woken somebody."""
        return self.is_sent and self.incident.severity != NOTE


@dataclass(frozen=True, slots=True)
class Shadow:
    """All that is known of a period, read at *times*; *gpu_hours* are those of the jobs then.

    *judged* are incidents in the order in which they began; *pages* began in the period.
    """

    times: Grid
    rules: Rules
    coverage: Coverage
    judged: Sequence[Judged]
    pages: Sequence[Page]
    gpu_hours: float | None
    broken_lines: Sequence[int]

    @property
    def weeks(self) -> float:
        """Return how many weeks were watched."""
        return self.coverage.watched_seconds / (7 * DAY_SECONDS)

    @property
    def precision(self) -> Precision:
        """Return how many incidents were right."""
        return precision(each.verdict for each in self.judged)


def read_shadow(
    prometheus: Prometheus,
    span: Span,
    said: Said,
    gap_seconds: float,
    cluster: str | None = None,
) -> Shadow:
    """Return what would have been sent during *span*; breaks up to *gap_seconds* are bridged.

    Raises Trouble if *prometheus* cannot tell.
    """
    history, rules = History(prometheus), read_rules(prometheus)
    times = grid(*span, rules.interval_seconds)
    coverage = read_coverage(history, times)
    where = selector(cluster=cluster)
    found = read_incidents(history, times, f",{where}" if where else "", gap_seconds)
    first = min((each.begin for each in found), default=times.begin)
    whole = Grid(min(first, times.begin), times.end, times.step_seconds)
    costs = Costs(history, whole, f",{where}" if where else "")
    told = sent([firing for each in found for firing in each.firings])
    judged = judged_of(found, told, costs, said, gap_seconds)
    inside = [page for page in pages(told, gap_seconds) if page.span[0] >= times.begin]
    watched = _watched(history, times, where)
    return Shadow(times, rules, coverage, judged, inside, watched, said.broken)


def judged_of(
    found: Sequence[Incident],
    told: Sequence[Firing],
    costs: Costs,
    said: Said,
    gap_seconds: float,
) -> list[Judged]:
    """Return the incidents *found*, of which only what was *told* is sent."""
    owners = [n for n, each in enumerate(found) for _ in each.firings]
    is_sent = {n for n, firing in zip(owners, told, strict=True) if firing.spans}
    newest = said.newest
    return [
        Judged(each, costs.of(each), n in is_sent, _confirmation(each, newest, gap_seconds))
        for n, each in enumerate(found)
    ]


def read_incidents(
    history: History, times: Grid, matchers: str, gap_seconds: float
) -> list[Incident]:
    """Return the incidents of *times*; those that had begun before are followed back."""
    fires = f'ALERTS{{alertstate="firing",alertname=~"Rankskew.*"{matchers}}}'
    lines = history.lines(fires, times)
    first = times.begin
    while any(_begins_at(line.times, first, gap_seconds) for line in lines):
        if first <= times.begin - BACK_SECONDS:
            break
        step = times.step_seconds
        piece = Grid(first - round(PIECE_SECONDS / step) * step, first - step, step)
        older = history.lines(fires, piece)
        if not older:
            break
        lines, first = [*older, *lines], piece.begin
    whole = Grid(first, times.end, times.step_seconds)
    fired = with_names(history, whole, firings(lines, times.step_seconds))
    return [each for each in incidents(fired, gap_seconds) if each.end > times.begin]


def _begins_at(points: Sequence[float], first: float, gap_seconds: float) -> bool:
    return bool(points) and points[0] - first <= gap_seconds


def _confirmation(
    incident: Incident, newest: Mapping[str, Confirmation], gap_seconds: float
) -> Confirmation | None:
    if incident.id in newest:
        return newest[incident.id]
    alike = [
        each
        for each in newest.values()
        if each.is_of(incident.alert, incident.who, incident.begin, gap_seconds)
    ]
    return alike[-1] if alike else None


def _watched(history: History, times: Grid, where: str) -> float | None:
    """Return the GPU-hours of all jobs with a living rank."""
    least = (times.end - times.begin) / WATCHED_POINTS
    coarse = grid(times.begin, times.end, times.step_seconds, least)
    running = f"job:rankskew_world_size:max{{{where}}} and job:rankskew_ranks_beating:sum > 0"
    lines = history.lines(f"sum({running})", coarse)
    values = [value for line in lines for value in line.values]
    return sum(values) * coarse.step_seconds / HOUR_SECONDS if values else None

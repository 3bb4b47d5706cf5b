"""Which alerts a Prometheus evaluates, when it did so, and why not in the rest of a period."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from exporter.bundle import bundled
from rankskew.client.fetch import Trouble
from rankskew.client.fields import number, objects, text
from rankskew.client.prometheus import Prometheus
from rankskew.report.history import Grid, PastSeries, grid, spans_of
from rankskew.report.times import Span, seconds, without

# What docs/operating.md recommends.
USUAL_INTERVAL_SECONDS: Final = 15.0
OURS: Final = "Rankskew"
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


# ---- Rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rules:
    """The alerts that are *loaded*, None if that is not known, and the shortest interval of them.

    *is_known*: the interval was read, not assumed.
    """

    interval_seconds: float
    is_known: bool
    loaded: frozenset[str] | None

    @property
    def missing(self) -> list[str]:
        """Return the shipped alerts that are not loaded now."""
        return [] if self.loaded is None else sorted(shipped() - self.loaded)


def read_rules(prometheus: Prometheus) -> Rules:
    """Return what *prometheus* says; some systems that answer its queries do not say."""
    try:
        groups = prometheus.alert_groups()
    except Trouble:
        return Rules(USUAL_INTERVAL_SECONDS, False, None)
    ours = {n: each for n, each in enumerate(groups) if _alerts(each)}
    loaded = frozenset(name for each in ours.values() for name in _alerts(each))
    intervals = [number(each.get("interval")) for each in ours.values()]
    known = [each for each in intervals if each]
    return Rules(min(known, default=USUAL_INTERVAL_SECONDS), bool(known), loaded)


@cache
def shipped() -> frozenset[str]:
    """Return the names of the alerts that belong to this release."""
    return frozenset(
        rule["alert"]
        for path in bundled("alerts/rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    )


def _alerts(group: Mapping[str, Any]) -> list[str]:
    names = [text(rule.get("name")) or "" for rule in objects(group.get("rules"))]
    return [name for name in names if name.startswith(OURS)]


# ---- Coverage ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeriodCoverage:
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


def read_coverage(history: PastSeries, times: Grid) -> PeriodCoverage:
    """Return what *history* can tell about *times*; raises Trouble."""
    asked = times.begin, times.end + times.step_seconds
    ruled = spans_of(history.read(f"{RULES_RUN} and {SCRAPED}", times), times.step_seconds)
    rest = without([asked], ruled)
    holes = [hole for hole in rest if hole[1] - hole[0] >= LEAST_HOLE_SECONDS]
    if not holes:
        return PeriodCoverage(asked, ruled, [])
    coarse = grid(*asked, times.step_seconds, WHY_STEP_SECONDS)
    anything, scraped = (
        spans_of(history.read(series, coarse), coarse.step_seconds)
        for series in (ANYTHING, SCRAPED)
    )
    return PeriodCoverage(asked, ruled, [(hole, _why(hole, anything, scraped)) for hole in holes])


def _why(hole: Span, anything: Sequence[Span], scraped: Sequence[Span]) -> str:
    """Return the reason for most of *hole*."""
    long = hole[1] - hole[0]
    if seconds(without([hole], anything)) > long / 2:
        return NO_DATA
    return NO_EXPORTERS if seconds(without([hole], scraped)) > long / 2 else NO_RULES

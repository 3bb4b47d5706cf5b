"""Incidents: what fired for one rank, node or job, however its severity, stage or cause changed."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Final

from exporter.errors import StartError
from rankskew.client.prometheus import Series
from rankskew.report.history import Grid, PastSeries, spans_of
from rankskew.report.losses import slower_gpus
from rankskew.times import (
    DAY_SECONDS,
    HOUR_SECONDS,
    Span,
    iso,
    merged,
    seconds,
    to_minute,
)

# The worst first.
SEVERITIES: Final = {"critical": 0, "warning": 1, "info": 2}
# What an incident is of. Severity, stage, cause, kind and the like change while it lasts.
IDENTITY: Final = ("cluster", "job_id", "peer_group", "rank", "instance", "gpu_uuid", "state")
# A job hangs once, whichever of its ranks is the suspect.
ONE_OF_A_JOB: Final = {"RankskewJobHung": ("cluster", "job_id")}
# An incident that began before the period is followed back, at most so far, a day at a time.
BACK_SECONDS: Final = 14 * DAY_SECONDS
# Recorded at each evaluation while any exporter shows a job or a GPU.
RULES_RUN: Final = "group(job:rankskew_job:group) and group(rankskew_exporter_build_info)"


@dataclass(frozen=True, slots=True)
class Incident:
    """An alert that fired for one rank, GPU, node, peer group or job."""

    alert: str
    """Name of the alert that fired."""
    severity: str
    """The worst severity that it had: critical, warning or info."""
    cluster: str | None
    """Label cluster of the alert; null without one."""
    job_id: str | None
    """The job that it is of; null if the alert names none."""
    who: Mapping[str, str]
    """Labels of what it is of, such as cluster, job_id, rank and instance."""
    place: str
    """The same in words, such as rank 3 on node-7."""
    stage: str | None
    """Stage that the alert named for the longest time; null if it named none."""
    cause: str | None
    """Cause that the alert named for the longest time; null if it named none."""
    begin: str
    """When the alert fired first, ISO 8601 in UTC."""
    end: str
    """When it fired last, ISO 8601 in UTC."""
    seconds: float
    """Seconds from begin to end, with short breaks."""
    gpu_hours: float | None
    """GPU-hours lost while it fired; null if the alert has no cost of its own."""
    dollars: float | None
    """US$ of these GPU-hours; null without a price or a cost."""


@dataclass(frozen=True, slots=True)
class IncidentsReport:
    """The alerts of a period, with what they cost."""

    watched_seconds: float
    """For how many seconds of the period alerts could fire."""
    gpu_hours_lost: float | None
    """GPU-hours lost while the alerts fired; null if none of them has a cost."""
    dollars_lost: float | None
    """US$ of these GPU-hours; null without a price or a cost."""
    incidents: Sequence[Incident]
    """Alerts that fired in the period, in the order of their begin."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert with all of its *labels*, and when it fired."""

    labels: Mapping[str, str]
    spans: Sequence[Span]


@dataclass(frozen=True)
class AlertIncident:
    """The *firings* of one *alert* for the same *who*, with no long break between them."""

    alert: str
    who: Mapping[str, str]
    firings: Sequence[Firing]

    @cached_property
    def spans(self) -> list[Span]:
        """When it fired."""
        return merged(span for firing in self.firings for span in firing.spans)

    @property
    def begin(self) -> float:
        """When it fired first, in Unix seconds."""
        return self.spans[0][0]

    @property
    def end(self) -> float:
        """When it last fired, in Unix seconds."""
        return self.spans[-1][1]

    @property
    def severity(self) -> str:
        """The worst that it had."""
        found = {firing.labels.get("severity", "") for firing in self.firings}
        return next((each for each in SEVERITIES if each in found), min(found))

    def mostly(self, label: str) -> str | None:
        """Return the value of *label* that it had for the longest time."""
        times: dict[str, float] = defaultdict(float)
        for firing in self.firings:
            times[firing.labels.get(label, "")] += seconds(firing.spans)
        times.pop("", None)
        return max(sorted(times), key=lambda value: times[value]) if times else None

    @property
    def place(self) -> str:
        """Say which rank, GPU or node it was."""
        ranks = sorted(
            {f.labels["rank"] for f in self.firings if f.labels.get("rank")}, key=_number
        )
        found = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
        gpu, node = self.mostly("gpu_uuid"), self.mostly("nodename") or self.mostly("instance")
        if gpu and not ranks:
            found.append(gpu)
        if node:
            found.append(f"{'on ' if found else ''}{node}")
        return " ".join(found) or self.who.get("peer_group") or "the job"


def identity(labels: Mapping[str, str]) -> dict[str, str]:
    """Return which of the *labels* of an alert say what it is of."""
    names = ONE_OF_A_JOB.get(labels.get("alertname", ""), IDENTITY)
    # A rank may learn of its peer group late.
    left_out = "peer_group" if labels.get("rank") else ""
    return {name: labels[name] for name in names if labels.get(name) and name != left_out}


def fires(matchers: str = "") -> str:
    """Return the series of our alerts that fire, with further *matchers*."""
    more = f",{matchers}" if matchers else ""
    return f'ALERTS{{alertstate="firing",alertname=~"Rankskew.*"{more}}}'


def firings(found: Iterable[Series], step_seconds: float) -> list[Firing]:
    """Return the alerts in the series of ALERTS that were *found*, read every *step_seconds*."""
    return [
        Firing(
            {name: text for name, text in each.labels.items() if name != "alertstate"},
            spans_of([each], step_seconds),
        )
        for each in found
    ]


def incidents(fired: Iterable[Firing], gap_seconds: float) -> list[AlertIncident]:
    """Return the incidents in *fired*, by their begin; a break of *gap_seconds* ends one."""
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[Firing]] = defaultdict(list)
    for firing in fired:
        who = tuple(sorted(identity(firing.labels).items()))
        alike[firing.labels.get("alertname", ""), who].append(firing)
    found = [
        AlertIncident(alert, dict(who), _during(those, whole))
        for (alert, who), those in alike.items()
        for whole in merged((span for each in those for span in each.spans), gap_seconds)
    ]
    return sorted(found, key=lambda each: (each.begin, each.alert, sorted(each.who.items())))


def _during(those: Sequence[Firing], whole: Span) -> list[Firing]:
    """Return the part of each firing within *whole*, which cuts none of its spans."""
    begin, end = whole
    cut = [
        Firing(each.labels, [span for span in each.spans if begin <= span[0] < end])
        for each in those
    ]
    return [each for each in cut if each.spans]


def _number(rank: str) -> tuple[int, str]:
    return (int(rank), "") if rank.isdecimal() else (0, rank)


# ---- What they cost ------------------------------------------------------------------------------

OF_RANK: Final = ("cluster", "job_id", "rank", "instance")
OF_NODE: Final = ("cluster", "job_id", "instance")
OF_JOB: Final = ("cluster", "job_id")


@dataclass(frozen=True, slots=True)
class Measure:
    """The *series* that says how many GPUs the *alerts* cost, and the labels both have."""

    alerts: tuple[str, ...]
    series: str
    labels: tuple[str, ...]
    kind: str = ""

    def expression(self, matchers: str) -> str:
        """Return the series while one of the alerts fires for the same labels."""
        named = ",".join(filter(None, [f'alertname=~"{"|".join(self.alerts)}"', matchers]))
        fires = f'ALERTS{{alertstate="firing",{named}}}'
        return f"({self.series} and on ({', '.join(self.labels)}) {fires})"


# Alerts on hardware have no cost of their own: a rank that it makes late has an alert for that.
MEASURES: Final = (
    Measure(("RankskewStraggler", "RankskewRankSlower"), "rank:rankskew_gpus_lost:sum", OF_RANK),
    Measure(("RankskewSlowNode",), "node:rankskew_gpus_lost:sum", OF_NODE),
    *(
        Measure((alert,), f'job_kind:rankskew_gpus_lost:sum{{kind="{kind}"}}', OF_JOB, kind)
        for alert, kind in (
            ("RankskewJobHung", "hung"),
            ("RankskewRotatingImbalance", "rotating"),
            ("RankskewStageImbalance", "group"),
            ("RankskewCommunicationBound", "common"),
        )
    ),
    Measure(("RankskewJobSlower",), f"max by (cluster, job_id) ({slower_gpus('')})", OF_JOB),
)
MEASURE_OF: Final = {alert: measure for measure in MEASURES for alert in measure.alerts}
PRICE: Final = "on (cluster, job_id) group_left () job:rankskew_gpu_hour_price:value"


class Costs:
    """The GPUs, and the US$ an hour, that each rank, node or job cost while its alert fired."""

    def __init__(self, history: PastSeries, times: Grid, matchers: str = "") -> None:
        lost = " or ".join(measure.expression(matchers) for measure in MEASURES)
        self._step = times.step_seconds
        self._gpus = _by_labels(history.read(lost, times))
        self._dollars = _by_labels(history.read(f"({lost}) * {PRICE}", times))

    def of(self, incident: AlertIncident) -> tuple[float | None, float | None]:
        """Return the GPU-hours and US$ of *incident*; None for what nothing measures or records."""
        measure = MEASURE_OF.get(incident.alert)
        if measure is None:
            return None, None
        labels = incident.firings[0].labels
        who = measure.kind, *(labels.get(name, "") for name in measure.labels)
        gpus, dollars = self._gpus.get(who, ()), self._dollars.get(who, ())
        return self._sum(gpus, incident), self._sum(dollars, incident)

    def _sum(self, found: Sequence[Series], during: AlertIncident) -> float | None:
        values = [
            value
            for each in found
            for _, value in each.points[_place(each, during.begin) : _place(each, during.end)]
        ]
        return sum(values) * self._step / HOUR_SECONDS if values else None


def _place(series: Series, at: float) -> int:
    return bisect_left(series.points, at, key=itemgetter(0))


def _by_labels(found: Sequence[Series]) -> dict[tuple[str, ...], list[Series]]:
    alike: dict[tuple[str, ...], list[Series]] = defaultdict(list)
    for each in found:
        of = OF_RANK if each["rank"] else OF_NODE if each["instance"] else OF_JOB
        alike[each["kind"], *(each[name] for name in of)].append(each)
    return alike


def read_incidents(
    history: PastSeries, times: Grid, matchers: str, gap_seconds: float
) -> list[Incident]:
    """Return the incidents of *times* that *matchers* select, in the order of their begin.

    Those that had begun before are followed back. Breaks up to *gap_seconds* are bridged. Raises
    Trouble.
    """
    fired = _fired(history, times, matchers, gap_seconds)
    found = [each for each in incidents(fired, gap_seconds) if each.end > times.begin]
    first = min((each.begin for each in found), default=times.begin)
    whole = Grid(min(first, times.begin), times.end, times.step_seconds)
    costs = Costs(history, whole, matchers)
    return [_incident(each, *costs.of(each)) for each in found]


def _incident(found: AlertIncident, gpu_hours: float | None, dollars: float | None) -> Incident:
    return Incident(
        alert=found.alert,
        severity=found.severity,
        cluster=found.who.get("cluster"),
        job_id=found.who.get("job_id"),
        who=found.who,
        place=found.place,
        stage=found.mostly("stage"),
        cause=found.mostly("cause"),
        begin=iso(found.begin),
        end=iso(found.end),
        seconds=found.end - found.begin,
        gpu_hours=gpu_hours,
        dollars=dollars,
    )


def _fired(history: PastSeries, times: Grid, matchers: str, gap_seconds: float) -> list[Firing]:
    """Return what fired during *times*, and before as long as that may be the same incident."""
    first, step = times.begin, times.step_seconds
    found = history.read(fires(matchers), times)
    while first > times.begin - BACK_SECONDS and any(
        each.points and each.points[0][0] - first <= gap_seconds for each in found
    ):
        piece = Grid(first - round(DAY_SECONDS / step) * step, first - step, step)
        older = history.read(fires(matchers), piece)
        if not older:
            break
        found, first = [*older, *found], piece.begin
    return firings(found, step)


def read_all_incidents(
    history: PastSeries, times: Grid, matchers: str, gap_seconds: float
) -> IncidentsReport:
    """Return the report on *times*, as read_incidents; raises StartError if no rules ran."""
    watched = seconds(spans_of(history.read(RULES_RUN, times), times.step_seconds))
    if not watched:
        begin, end = to_minute(iso(times.begin)), to_minute(iso(times.end + times.step_seconds))
        raise StartError(
            f"no rules of Rankskew were evaluated from {begin} to {end} UTC; rankskew files DIR "
            "writes them"
        )
    found = read_incidents(history, times, matchers, gap_seconds)
    hours = [each.gpu_hours for each in found if each.gpu_hours is not None]
    dollars = [each.dollars for each in found if each.dollars is not None]
    return IncidentsReport(
        watched, sum(hours) if hours else None, sum(dollars) if dollars else None, found
    )

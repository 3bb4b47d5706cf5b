"""Incidents: what fired for one rank, node or job, however its severity, stage or cause changed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from exporter.errors import StartError
from rankskew.client.prometheus import Prometheus, Series
from rankskew.report.history import Grid, Point, read_past, spans_of
from rankskew.times import HOUR_SECONDS, Span, iso, merged, seconds, to_minute

# The worst first.
SEVERITIES: Final = {"critical": 0, "warning": 1, "info": 2}
# Labels that identify an incident. Severity, stage, cause, kind etc. may change while it lasts.
IDENTITY: Final = ("cluster", "job_id", "peer_group", "rank", "instance", "gpu_uuid", "state")
# A job hangs once, whichever of its ranks is the suspect.
ONE_OF_A_JOB: Final = {"RankskewJobHung": ("cluster", "job_id")}
# An alert that fires again within this time is the same incident.
GAP_SECONDS: Final = 600.0
# Recorded at each evaluation while any exporter shows a job or a GPU.
RULES_RUN: Final = (
    "group(job:rankskew_job:group{{{0}}}) and group(rankskew_exporter_build_info{{{0}}})"
)


@dataclass(frozen=True, slots=True)
class Incident:
    """An alert that fired for one rank, GPU, node, peer group or job."""

    alert: str
    """Name of the alert that fired."""
    severity: str
    """The worst severity that it had: critical, warning or info."""
    who: Mapping[str, str]
    """Labels of what it is of, such as cluster, job_id, rank and instance."""
    place: str
    """The same in words, such as rank 3 on node-7."""
    stage: str | None
    """Stage that the alert named for the longest time; null if it named none."""
    cause: str | None
    """Cause that the alert named for the longest time; null if it named none."""
    begin: str
    """When the alert fired first in the period, ISO 8601 in UTC."""
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


class Firing(NamedTuple):
    """One alert with all of its *labels*, and when it fired."""

    labels: Mapping[str, str]
    spans: Sequence[Span]


class Group(NamedTuple):
    """The *firings* of one *alert* for the same *who*, with no long break between them."""

    alert: str
    who: Mapping[str, str]
    firings: Sequence[Firing]
    begin: float
    end: float


def read_all_incidents(prometheus: Prometheus, times: Grid, matchers: str) -> IncidentsReport:
    """Return the report on *times*, as read_incidents; raises StartError if no rules ran."""
    ran = read_past(prometheus, RULES_RUN.format(matchers), times)
    watched = seconds(spans_of(ran, times.step_seconds))
    if not watched:
        begin, end = to_minute(iso(times.begin)), to_minute(iso(times.end + times.step_seconds))
        raise StartError(
            f"no rules of Rankskew were evaluated from {begin} to {end} UTC; rankskew files DIR "
            "writes them"
        )
    found = read_incidents(prometheus, times, matchers)
    hours = [each.gpu_hours for each in found if each.gpu_hours is not None]
    dollars = [each.dollars for each in found if each.dollars is not None]
    return IncidentsReport(
        watched, sum(hours) if hours else None, sum(dollars) if dollars else None, found
    )


def read_incidents(prometheus: Prometheus, times: Grid, matchers: str) -> list[Incident]:
    """Return the incidents of *times* that *matchers* select, by their begin; raises Trouble."""
    found = read_past(prometheus, _fires("Rankskew.*", matchers), times)
    fired = [Firing(each.labels, spans_of([each], times.step_seconds)) for each in found]
    groups = grouped(fired)
    lost = " or ".join(_lost(alert, matchers) for alert in MEASURES)
    gpus = _by_labels(read_past(prometheus, lost, times))
    dollars = _by_labels(read_past(prometheus, f"({lost}) * {PRICE}", times))
    hours = times.step_seconds / HOUR_SECONDS
    return [incident(each, _sum(gpus, each, hours), _sum(dollars, each, hours)) for each in groups]


def incident(
    group: Group, gpu_hours: float | None = None, dollars: float | None = None
) -> Incident:
    """Return what is said of a *group*."""
    severities = {firing.labels.get("severity", "") for firing in group.firings}
    return Incident(
        alert=group.alert,
        severity=next((each for each in SEVERITIES if each in severities), min(severities)),
        who=group.who,
        place=_place(group),
        stage=_mostly(group, "stage"),
        cause=_mostly(group, "cause"),
        begin=iso(group.begin),
        end=iso(group.end),
        seconds=group.end - group.begin,
        gpu_hours=gpu_hours,
        dollars=dollars,
    )


def _mostly(group: Group, label: str) -> str | None:
    """Return the value of *label* that it had for the longest time."""
    times: dict[str, float] = defaultdict(float)
    for firing in group.firings:
        times[firing.labels.get(label, "")] += seconds(firing.spans)
    times.pop("", None)
    return max(sorted(times), key=lambda value: times[value]) if times else None


def _place(group: Group) -> str:
    """Say which rank, GPU or node it was."""
    numbers = {each.labels["rank"] for each in group.firings if each.labels.get("rank")}
    ranks = sorted(numbers, key=lambda rank: (len(rank), rank))
    found = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
    gpu, node = _mostly(group, "gpu_uuid"), _mostly(group, "nodename") or _mostly(group, "instance")
    if gpu and not ranks:
        found.append(gpu)
    if node:
        found.append(f"{'on ' if found else ''}{node}")
    return " ".join(found) or group.who.get("peer_group") or "the job"


# ---- What fired ----------------------------------------------------------------------------------


def _fires(alerts: str, matchers: str) -> str:
    """Return the series of *alerts*, a regular expression, that fire, with further *matchers*."""
    named = ",".join(filter(None, ['alertstate="firing"', f'alertname=~"{alerts}"', matchers]))
    return f"ALERTS{{{named}}}"


def grouped(fired: Iterable[Firing]) -> list[Group]:
    """Return the incidents in *fired*, by their begin; one goes on after a break of GAP_SECONDS."""
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[Firing]] = defaultdict(list)
    for firing in fired:
        who = tuple(sorted(identity(firing.labels).items()))
        alike[firing.labels.get("alertname", ""), who].append(firing)
    found = [
        Group(alert, dict(who), _during(those, *whole), *whole)
        for (alert, who), those in alike.items()
        for whole in merged((span for each in those for span in each.spans), GAP_SECONDS)
    ]
    return sorted(found, key=lambda each: (each.begin, each.alert, sorted(each.who.items())))


def identity(labels: Mapping[str, str]) -> dict[str, str]:
    """Return which of the *labels* of an alert say what it is of."""
    names = ONE_OF_A_JOB.get(labels.get("alertname", ""), IDENTITY)
    # A rank may learn of its peer group late.
    left_out = "peer_group" if labels.get("rank") else ""
    return {name: labels[name] for name in names if labels.get(name) and name != left_out}


def _during(those: Sequence[Firing], begin: float, end: float) -> list[Firing]:
    """Return the part of each firing from *begin* to *end*, which cut none of its spans."""
    cut = (
        Firing(each.labels, [span for span in each.spans if begin <= span[0] < end])
        for each in those
    )
    return [each for each in cut if each.spans]


# ---- What they cost ------------------------------------------------------------------------------

OF_RANK: Final = ("cluster", "job_id", "rank", "instance")
OF_NODE: Final = ("cluster", "job_id", "instance")
OF_JOB: Final = ("cluster", "job_id")
SLOWER: Final = (
    "max by (cluster, job_id) (rankskew_job_change_gpus) "
    "unless on (cluster, job_id) job:rankskew_hung:seconds"
)
# By alert, the series that says how many GPUs it costs, and the labels that both have. Alerts on
# hardware have no cost of their own: a rank that it makes late has an alert for that.
MEASURES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "RankskewStraggler": ("rank:rankskew_gpus_lost:sum", OF_RANK),
    "RankskewRankSlower": ("rank:rankskew_gpus_lost:sum", OF_RANK),
    "RankskewSlowNode": ("node:rankskew_gpus_lost:sum", OF_NODE),
    "RankskewJobHung": ('job_kind:rankskew_gpus_lost:sum{kind="hung"}', OF_JOB),
    "RankskewRotatingImbalance": ('job_kind:rankskew_gpus_lost:sum{kind="rotating"}', OF_JOB),
    "RankskewStageImbalance": ('job_kind:rankskew_gpus_lost:sum{kind="group"}', OF_JOB),
    "RankskewCommunicationBound": ('job_kind:rankskew_gpus_lost:sum{kind="common"}', OF_JOB),
    "RankskewJobSlower": (SLOWER, OF_JOB),
    "RankskewInputStarvation": ('job_kind:rankskew_gpus_lost:sum{kind="shared"}', OF_JOB),
    "RankskewCheckpointStall": ("rank:rankskew_gpus_lost:sum", OF_RANK),
}
PRICE: Final = "on (cluster, job_id) group_left () job:rankskew_gpu_hour_price:value"
# By alert, and the labels of its measure.
Costs = Mapping[tuple[str, ...], Sequence[Point]]


def _lost(alert: str, matchers: str) -> str:
    """Return the GPUs that *alert* costs while it fires, with its name as a label."""
    series, labels = MEASURES[alert]
    measured = f"{series} and on ({', '.join(labels)}) {_fires(alert, matchers)}"
    return f'label_replace({measured}, "alert", "{alert}", "", "")'


def _by_labels(found: Sequence[Series]) -> Costs:
    alike: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for each in found:
        labels = MEASURES[each["alert"]][1]
        alike[each["alert"], *(each[name] for name in labels)] += each.points
    return alike


def _sum(costs: Costs, during: Group, hours: float) -> float | None:
    """Return the sum of the costs of *during*, each for *hours*; None if nothing is recorded."""
    labels = during.firings[0].labels
    _, names = MEASURES.get(during.alert, ("", ()))
    points = costs.get((during.alert, *(labels.get(name, "") for name in names)), ())
    values = [value for at, value in points if during.begin <= at < during.end]
    return sum(values) * hours if values else None

"""The report on a job from a Prometheus, at one moment: with alerts, and what changed lately."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from exporter.live.wording import duration
from rank_probe.judge.verdict import Change
from rankskew.client.fetch import ANYONE, Access
from rankskew.client.fields import label
from rankskew.client.prometheus import Prometheus, Sample, selector
from rankskew.diagnose.advice import for_alert
from rankskew.diagnose.findings import CauseOnNode, all_findings, late_events, report, slower
from rankskew.diagnose.model import CannotTell, Event, Finding, Place, Report
from rankskew.diagnose.moment import Moment, instances, look
from rankskew.diagnose.render import clock
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, ask
from rankskew.top.model import NO_RANK, FleetStatus, JobStatus, several_jobs

# Of an earlier time these only mean that there is no data.
NOTHING_THERE: Final = (NO_EXPORTER, NO_RULES, NO_RANK)


def read(
    url: str, cluster: str | None, job_id: str | None, at: float | None, access: Access = ANYONE
) -> Report:
    """Return the report at the Unix time *at*, or now; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, at, access=access)
    moment = look(prometheus, _one_job(ask(prometheus, cluster, job_id), at))
    facts = moment.facts()
    findings, more = all_findings(facts)
    findings = _with_alerts(moment, findings)
    of_the_job, events = _whole_job(moment)
    return report(facts, prometheus.url, prometheus.now, [*findings, *of_the_job], more, events)


def _one_job(fleet: FleetStatus, at: float | None) -> JobStatus:
    """Return the only job of *fleet*; raises CannotTell, and says why there is not one."""
    if fleet.troubles and at is not None and fleet.troubles[0] in NOTHING_THERE:
        when = clock(at, "%Y-%m-%d %H:%M:%S")
        raise CannotTell(f"{fleet.source} has recorded nothing of any job at {when} UTC.")
    if fleet.troubles:
        raise CannotTell(fleet.troubles[0])
    if fleet.focus is None:
        raise CannotTell(several_jobs([job.job_id for job in fleet.jobs]))
    return fleet.focus


# ---- Alerts about the GPUs, nodes and batches of a job; those on its pace are known --------------

# The state, the late ranks and the losses of the job say these, and more.
KNOWN: Final = (
    "Straggler|SlowNode|JobHung|RanksMissing|SlowStart|NotJudgeable|ExporterDown|RankSlower"
    "|RotatingImbalance|StageImbalance|CommunicationBound|EfficiencyDrop|JobSlower"
)
MOST_ALERTS: Final = 5
ON_NODES: Final = "and on (cluster, instance) rankskew_node_ranks"


def _with_alerts(moment: Moment, found: Sequence[Finding]) -> list[Finding]:
    """Return *found* and the other alerts that fire for the job; raises Trouble.

    One about a rank or node that is among *found* is a fact of it.
    """
    facts: dict[int, list[str]] = defaultdict(list)
    alone = []
    for alert in _others(moment):
        mine = next((n for n, other in enumerate(found) if _same(alert, other)), None)
        if mine is None:
            alone.append(alert)
        else:
            facts[mine].append(alert.sentence)
    told = [replace(each, facts=tuple(facts[place])) for place, each in enumerate(found)]
    return [*told, *alone[:MOST_ALERTS]]


def _others(moment: Moment) -> list[Finding]:
    """Return the other alerts, each rank or GPU once.

    One that is not information counts before its time has passed too: somebody looks now.
    """
    names = f'alertname=~"Rankskew.*",alertname!~"Rankskew({KNOWN})"'
    cluster = selector(cluster=moment.job.cluster)
    of_nodes = f'ALERTS{{{names},job_id="",{cluster}}} {ON_NODES}{{{moment.where}}}'
    found = moment.prometheus.query(f"ALERTS{{{names},{moment.where}}} or {of_nodes}")
    # A rank that does something for all is among the late ones.
    new = [s for s in found if not (s["rank"] and s["alertname"] == "RankskewCheckpointStall")]
    urgent = [s for s in new if s["alertstate"] == "firing" or s["severity"] != "info"]
    once = {(s["alertname"], s["rank"], s["instance"], s["gpu_uuid"]): s for s in urgent}
    told = sorted(once.values(), key=_order)
    places = moment.places(instances(told))
    return [_of_alert(moment, sample, places) for sample in told]


def _same(alert: Finding, other: Finding) -> bool:
    if other.cause is None:
        return False
    if alert.rank is not None:
        return alert.rank in other.ranks
    instance = alert.place.instance
    return instance is not None and instance == other.place.instance


def _order(sample: Sample) -> tuple[bool, str, int]:
    rank = sample["rank"]
    return sample["severity"] == "info", sample["alertname"], int(rank) if rank.isdecimal() else -1


def _of_alert(moment: Moment, sample: Sample, places: Mapping[int, Place]) -> Finding:
    entry = for_alert(sample["alertname"])
    rank = int(sample["rank"]) if sample["rank"].isdecimal() else None
    place = moment.place(sample["instance"]) if rank is None else places[rank]
    place = replace(
        place,
        node=sample["nodename"] or place.node,
        gpu=place.gpu or label(sample["gpu"]),
        gpu_uuid=label(sample["gpu_uuid"]) or place.gpu_uuid,
    )
    what = entry.cause if entry is not None else "unknown"
    text = entry.text if entry is not None else _plain(sample["alertname"])
    yet = "" if sample["alertstate"] == "firing" else " (not long enough for an alert yet)"
    return Finding(
        what,
        f"{_about(rank, place)}{text}{yet}.",
        rank=rank,
        ranks=() if rank is None else (rank,),
        place=place,
    )


def _about(rank: int | None, place: Place) -> str:
    where = f" on {place.node}" if place.node else ""
    if rank is not None:
        return f"Rank {rank}{where}: "
    return f"Node {place.node}: " if place.node else "The job: "


def _plain(alert: str) -> str:
    return " ".join(re.findall(r"[A-Z][a-z]*", alert.removeprefix("Rankskew"))).lower()


# ---- When the job became slower, and what began at about that time -------------------------------

# The judge's words on the job, from whichever exporter; a scope of SET are some ranks of a group.
CHANGES: Final = (
    "max by (scope, stage, figure) (label_replace("
    '{{__name__=~"rankskew_job_change_(ratio|gpus|since_timestamp_seconds)",{where}}}, '
    '"figure", "$1", "__name__", "rankskew_job_change_(.*)"))'
)
SET: Final = "set"
# The alert on what is told anyway.
SELF: Final = "RankskewJobSlower began."
# How far back it looks, and how often.
BACK_SECONDS: Final = 3 * 3600.0
STEP_SECONDS: Final = 60.0
# Fewer points before or after are no level.
LEAST_POINTS: Final = 5
# A rise by less is within what steps differ by from hour to hour.
RISE: Final = 1.1
# Steps may be slower by the late ranks, which are told anyway, and by this.
UNEXPLAINED: Final = 1.08
# What began so long before or after belongs to it.
NEAR_SECONDS: Final = 600.0


def _whole_job(moment: Moment) -> tuple[list[Finding], list[Event]]:
    """Return how the whole job became slower, and all that began lately; raises Trouble.

    The judge says in which stage; what it cannot tell, because a change took hours or is older than
    its memory, shows in the length of the steps.
    """
    now = moment.prometheus.now
    events = [*late_events(moment.job), *_began(moment), *_started(moment)]

    changes = _judged(moment)
    why = _why(moment) if changes else {}

    def near(since: float) -> list[str]:
        those = [each for each in events if abs(each.since_seconds - since) <= NEAR_SECONDS]
        return [f"At about that time: {each.sentence}" for each in those if each.sentence != SELF]

    judged = [
        slower(
            change,
            sentence,
            why.get((change.peer_group, change.stage), ()),
            near(change.since_seconds),
        )
        for change, sentence in changes
    ]
    rise = _rise(moment, now)
    if rise is None:
        return judged, events
    since, before, after = rise
    told = Event(since, f"Steps take {after / before:.2f} times as long as before.")
    if judged or after / before < UNEXPLAINED * (moment.job.slowdown or 1.0):
        return judged, [*events, told]
    finding = Finding(
        "slower",
        f"The whole job has become slower: for {duration(since)}, a step has taken "
        f"{_ms(after)}, before {_ms(before)}.",
        since_seconds=since,
        facts=tuple(near(since)),
    )
    return [finding], [*events, told]


def _judged(moment: Moment) -> list[tuple[Change, str]]:
    """Return the changes that the judge of the job tells, each with a sentence if it needs one."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for each in moment.prometheus.query(CHANGES.format(where=moment.where)):
        found[each["scope"], each["stage"]][each["figure"]] = each.value
    ranks = moment.found.value("job:rankskew_ranks:sum") or 0.0
    now, changes = moment.prometheus.now, []
    for (scope, stage), figures in sorted(found.items()):
        gpus = figures.get("gpus", 0.0)
        change = Change(
            scope,
            stage,
            figures.get("ratio", 1.0),
            since_seconds=max(0.0, now - figures.get("since_timestamp_seconds", now)),
            step_ratio=ranks / (ranks - gpus) if gpus < ranks else 1.0,
            gpus=gpus,
        )
        longer = f"{change.ratio:.2f} times as long for {duration(change.since_seconds)}"
        of_some = f"Many ranks of the job became slower together: {stage} has taken {longer}."
        changes.append((change, of_some if scope == SET else ""))
    return changes


def _why(moment: Moment) -> Mapping[tuple[str, str], list[CauseOnNode]]:
    """Return the causes that exporters tell, by scope and stage of the change."""
    found: dict[tuple[str, str], list[CauseOnNode]] = defaultdict(list)
    for each in moment.prometheus.query(f"rankskew_job_change_cause_info{{{moment.where}}}"):
        node = moment.place(each["instance"]).node or each["instance"]
        why = CauseOnNode(node, (each["cause"], each["detail"]), each["sentence"])
        found[each["scope"], each["stage"]].append(why)
    return found


def _rise(moment: Moment, now: float) -> tuple[float, float, float] | None:
    """Return how long ago steps became longer, and how long they were before and are since."""
    series = f"job:rankskew_step_seconds:max{{{moment.where}}}"
    found = moment.prometheus.query_range(series, now - BACK_SECONDS, now, STEP_SECONDS)
    points = found[0].points if found else []
    place = _split([value for _, value in points])
    if place is None:
        return None
    before = median(value for _, value in points[:place])
    after = median(value for _, value in points[place:])
    return (now - points[place][0], before, after) if after / before >= RISE else None


def _split(values: Sequence[float]) -> int | None:
    """Return the place that splits *values* best into two levels, None if they are too few."""
    places = range(LEAST_POINTS, len(values) - LEAST_POINTS + 1)

    def misfit(place: int) -> float:
        return sum(
            abs(value - level)
            for part in (values[:place], values[place:])
            for level in [median(part)]
            for value in part
        )

    return min(places, key=misfit, default=None)


def _began(moment: Moment) -> list[Event]:
    """Return when each alert of the job began; ALERTS_FOR_STATE has that as its value."""
    found = moment.prometheus.query(f'ALERTS_FOR_STATE{{alertname=~"Rankskew.*",{moment.where}}}')
    began: dict[str, float] = {}
    for sample in found:
        name = sample["alertname"]
        began[name] = min(sample.value, began.get(name, sample.value))
    now = moment.prometheus.now
    return [Event(max(0.0, now - at), f"{name} began.") for name, at in began.items()]


def _started(moment: Moment) -> list[Event]:
    age = moment.found.value("job:rankskew_run_seconds:max")
    return [] if age is None else [Event(age, "The job started, or restarted.")]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"

"""The report on a job from a Prometheus, at one moment: with alerts, and what changed lately."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from exporter.live.causes import LineView
from exporter.live.states import RANKS_MISSING
from exporter.live.wording import duration, which
from exporter.vocabulary.advice import for_alert
from exporter.vocabulary.words import reasons_in_order
from rank_probe.judge.verdict import Change
from rankskew.client.fetch import ANYONE, Access
from rankskew.client.prometheus import Prometheus, Sample, selector, with_names
from rankskew.diagnose.findings import all_findings, late_events, report, slower
from rankskew.diagnose.model import CannotTell, Event, Finding, JobFacts, Place, Report, host
from rankskew.diagnose.render import clock
from rankskew.report.history import TIMEOUT_SECONDS
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, Recorded, read_fleet, series
from rankskew.top.model import NO_RANK, FleetStatus, JobStatus, several_jobs

# For an earlier time these only mean that no data was recorded.
NOTHING_THERE: Final = (NO_EXPORTER, NO_RULES, NO_RANK)


def read_prometheus(
    url: str, cluster: str | None, job_id: str | None, at: float | None, access: Access = ANYONE
) -> Report:
    """Return the report at the Unix time *at*, or now; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, at, TIMEOUT_SECONDS, access)
    job = _one_job(read_fleet(prometheus, cluster, job_id), at)
    where = selector(cluster=job.cluster, job_id=job.job_id)
    found = Recorded(with_names(prometheus, prometheus.query(series(SERIES, where))))
    facts = _facts(prometheus, where, job, found)
    findings, more = all_findings(facts)
    findings = _with_alerts(findings, _alerts(prometheus, where, facts))
    events = [*late_events(facts.job), *_began(prometheus, where, found)]
    findings += _changes(prometheus.now, facts.ranks, found, events)
    return report(facts, prometheus.url, prometheus.now, findings, more, events)


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


# ---- What is recorded of a job -------------------------------------------------------------------

# A job has few of each, whatever its size: only late and silent ranks, and nodes, have them.
SERIES: Final = (
    "job_stage:rankskew_gpus_lost:sum|rank_stage:rankskew_(gpus_lost:sum|hang_suspect:group)"
    "|rank:rankskew_(late:ratio|silent_seconds:max)|rankskew_late_line_ratio"
    "|rankskew_rank_silent_seconds|job_reason:rankskew_not_judgeable:bool"
    "|node:rankskew_exporter_down:group|rankskew_job_judge_info"
    "|job:rankskew_(threshold:value|run_seconds:max|starting_seconds:max)"
    "|rankskew_job_change_(ratio|gpus|since_timestamp_seconds|cause_info)"
)


def _facts(prometheus: Prometheus, where: str, job: JobStatus, found: Recorded) -> JobFacts:
    """Return what the findings are made from; raises Trouble."""
    silent = found["rank:rankskew_silent_seconds:max"]
    if not found["job:rankskew_run_seconds:max"]:  # The job is dead, for which there is no rule.
        silent = silent or found["rankskew_rank_silent_seconds"]
    unprobed = []
    if job.state == RANKS_MISSING:
        without = f'rankskew_gpu_rank_info{{source="environ",{where}}}'
        unprobed = with_names(prometheus, prometheus.query(without))
    suspects = found["rank_stage:rankskew_hang_suspect:group"]
    located = [*unprobed, *silent, *suspects, *found["rank:rankskew_late:ratio"]]
    late_gpus: dict[int, dict[str, float]] = defaultdict(dict)
    for rank, each in _of_ranks(found["rank_stage:rankskew_gpus_lost:sum"]):
        if each.value > 0:
            late_gpus[rank][each["stage"]] = each.value
    lines: dict[int, list[LineView]] = defaultdict(list)
    for rank, each in _of_ranks(found["rankskew_late_line_ratio"]):
        lines[rank].append(LineView(each["stage"], each["place"], each.value))
    judges = {each["judge"] for each in found["rankskew_job_judge_info"]}
    late = [replace(each, gpus_by_stage=late_gpus[each.rank]) for each in job.late]
    return JobFacts(
        replace(job, late=late),
        nodes={rank: each["instance"] for rank, each in _of_ranks(located)},
        lines=lines,
        silent={rank: each.value for rank, each in _of_ranks(silent)},
        unprobed=[rank for rank, _ in _of_ranks(unprobed)],
        down=sorted(found.by("instance", "node:rankskew_exporter_down:group")),
        rotating=found.by("stage", "job_stage:rankskew_gpus_lost:sum"),
        reasons=reasons_in_order(found.by("reason", "job_reason:rankskew_not_judgeable:bool")),
        age_seconds=found.value("job:rankskew_starting_seconds:max")
        or found.value("job:rankskew_run_seconds:max"),
        judge=judges.pop() if len(judges) == 1 else None,
        thresholds=found.by("name", "job:rankskew_threshold:value"),
    )


def _of_ranks(samples: Iterable[Sample]) -> list[tuple[int, Sample]]:
    return [(int(each["rank"]), each) for each in samples if each["rank"].isdecimal()]


# ---- Alerts about the GPUs, nodes and batches of a job; those on its pace are known --------------

# The job's state, late ranks and losses already report these, in more detail.
KNOWN: Final = (
    "Straggler|SlowNode|JobHung|RanksMissing|SlowStart|NotJudgeable|ExporterDown|RankSlower"
    "|RotatingImbalance|StageImbalance|CommunicationBound|EfficiencyDrop|JobSlower"
)
MOST_ALERTS: Final = 5


def _alerts(prometheus: Prometheus, where: str, facts: JobFacts) -> list[Finding]:
    """Return the other alerts on the job and its nodes, each rank or GPU once; raises Trouble.

    Pending alerts count too unless they are only information, because somebody looks now.
    """
    names = f'alertname=~"Rankskew.*",alertname!~"Rankskew({KNOWN})"'
    cluster = selector(cluster=facts.job.cluster)
    of_nodes = (
        f'ALERTS{{{names},job_id="",{cluster}}} '
        f"and on (cluster, instance) rankskew_node_ranks{{{where}}}"
    )
    found = prometheus.query(f"ALERTS{{{names},{where}}} or {of_nodes}")
    told = {
        (each["alertname"], each["rank"], each["instance"], each["gpu_uuid"]): each
        for each in with_names(prometheus, found)
        if each["alertstate"] == "firing" or each["severity"] != "info"
        # The late ranks already include those on duty.
        if not (each["rank"] and each["alertname"] == "RankskewCheckpointStall")
    }
    in_order = sorted(
        told.values(),
        key=lambda each: (each["severity"] == "info", each["alertname"], each["rank"].zfill(7)),
    )
    return [_of_alert(each, facts) for each in in_order]


def _of_alert(sample: Sample, facts: JobFacts) -> Finding:
    rank = int(sample["rank"]) if sample["rank"].isdecimal() else None
    known = Place() if rank is None else facts.place(rank)
    place = Place(
        node=sample["nodename"] or host(sample["instance"]) or known.node,
        gpu=known.gpu or sample["gpu"] or None,
        gpu_uuid=sample["gpu_uuid"] or known.gpu_uuid,
        pid=known.pid,
    )
    on_node = f" on {place.node}" if place.node else ""
    who = f"Node {place.node}" if place.node else "The job"
    who = who if rank is None else f"Rank {rank}{on_node}"
    entry = for_alert(sample["alertname"])
    words = re.findall("[A-Z][a-z]*", sample["alertname"].removeprefix("Rankskew"))
    text = entry.text if entry is not None else " ".join(words).lower()
    yet = "" if sample["alertstate"] == "firing" else " (not long enough for an alert yet)"
    return Finding(
        entry.cause if entry is not None else "unknown",
        f"{who}: {text}{yet}.",
        rank=rank,
        ranks=() if rank is None else (rank,),
        place=place,
    )


def _with_alerts(found: Sequence[Finding], alerts: Sequence[Finding]) -> list[Finding]:
    """Return *found* and *alerts*; an alert on a late rank or its node becomes a fact of it."""
    told, alone = list(found), []
    for alert in alerts:
        for place, late in enumerate(told):
            if _is_about(alert, late):
                told[place] = replace(late, facts=(*late.facts, alert.sentence))
                break
        else:
            alone.append(alert)
    return [*told, *alone[:MOST_ALERTS]]


def _is_about(alert: Finding, late: Finding) -> bool:
    if late.cause is None:
        return False
    if alert.rank is not None:
        return alert.rank in late.ranks
    return alert.place.node is not None and alert.place.node == late.place.node


# ---- When the job became slower, and what began at about that time -------------------------------

# The judge's figures on a change; every exporter repeats them.
FIGURES: Final = ("ratio", "gpus", "since_timestamp_seconds")
# The scope of a change that affects only some ranks of a group.
SET: Final = "set"
# The alert on the change itself, which the finding reports anyway.
SELF: Final = "RankskewJobSlower began."
# Events this close to a change, before or after, are listed with it.
NEAR_SECONDS: Final = 600.0


def _began(prometheus: Prometheus, where: str, found: Recorded) -> Iterator[Event]:
    """Yield when each alert of the job began, as ALERTS_FOR_STATE has it, and the job itself."""
    alerts = f'ALERTS_FOR_STATE{{alertname=~"Rankskew.*",{where}}}'
    for each in prometheus.query(f"min by (alertname) ({alerts})"):
        since = max(0.0, prometheus.now - each.value)
        yield Event(since, f"{each['alertname']} began.")
    if (age := found.value("job:rankskew_run_seconds:max")) is not None:
        yield Event(age, "The job started, or restarted.")


def _changes(now: float, ranks: int, found: Recorded, events: Sequence[Event]) -> Iterator[Finding]:
    """Yield how the whole job became slower, with what began at about that time."""
    told: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for name in FIGURES:
        for each in found[f"rankskew_job_change_{name}"]:
            figures = told[each["scope"], each["stage"], each["in_common"]]
            figures[name] = max(each.value, figures.get(name, 0.0))
    for (scope, stage, in_common), figures in sorted(told.items()):
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
        ranks_of_some = f"Many ranks of the job{which((), in_common)}"
        of_some = f"{ranks_of_some} became slower together: {stage} has taken {longer}."
        why = [
            (f"{each['cause']} {each['detail']}", host(each["instance"]) or "", each["sentence"])
            for each in found["rankskew_job_change_cause_info"]
            if (each["scope"], each["stage"]) == (scope, stage)
        ]
        near = [
            f"At about that time: {each.sentence}"
            for each in events
            if abs(each.since_seconds - change.since_seconds) <= NEAR_SECONDS
            and each.sentence != SELF
        ]
        yield slower(change, of_some if scope == SET else "", why, near)

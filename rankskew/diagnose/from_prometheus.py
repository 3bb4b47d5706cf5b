"""The report on a job from a Prometheus, at one moment: with alerts, and what changed lately."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from exporter.live.causes import LineView
from exporter.live.states import RANKS_MISSING
from exporter.live.wording import duration
from exporter.vocabulary.words import reasons_in_order
from rank_probe.judge.verdict import Change
from rankskew.client.fetch import ANYONE, Access
from rankskew.client.prometheus import Names, Prometheus, Sample, names_of_nodes, selector
from rankskew.diagnose.advice import for_alert
from rankskew.diagnose.findings import CauseOnNode, all_findings, late_events, report, slower
from rankskew.diagnose.model import CannotTell, Event, Finding, JobFacts, Place, Report, host
from rankskew.diagnose.render import clock
from rankskew.top.from_prometheus import NO_EXPORTER, NO_RULES, Recorded, ask, series
from rankskew.top.model import NO_RANK, FleetStatus, JobStatus, several_jobs

# Of an earlier time these only mean that there is no data.
NOTHING_THERE: Final = (NO_EXPORTER, NO_RULES, NO_RANK)


def read(
    url: str, cluster: str | None, job_id: str | None, at: float | None, access: Access = ANYONE
) -> Report:
    """Return the report at the Unix time *at*, or now; raises Trouble and CannotTell."""
    prometheus = Prometheus(url, at, access=access)
    moment = _look(prometheus, _one_job(ask(prometheus, cluster, job_id), at))
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


# ---- What is recorded of a job -------------------------------------------------------------------

# A job has a few of each, however many ranks it has: they are about late and silent ranks only.
SERIES: Final = (
    "job_stage:rankskew_gpus_lost:sum|rank_stage:rankskew_(gpus_lost:sum|hang_suspect:group)"
    "|rank:rankskew_(late:ratio|silent_seconds:max)|rankskew_late_line_ratio"
    "|job_reason:rankskew_not_judgeable:bool|node:rankskew_exporter_down:group"
    "|job:rankskew_(threshold:value|gpu_hour_price:value|ranks:sum|run_seconds:max|starting_seconds:max)"
)
INFO: Final = "rankskew_(rank_info|gpu_rank_info)"
# An exporter that has just gone, or did not answer in time, has told where its ranks are.
RECENTLY: Final = "last_over_time({}[15m])"


@dataclass(frozen=True, slots=True)
class Moment:
    """The *job* as *prometheus* knows it, *found* of it by series, and *names* of addresses."""

    prometheus: Prometheus
    job: JobStatus
    found: Recorded
    names: Names

    @property
    def where(self) -> str:
        """Return the matchers of the job."""
        return _of(self.job)

    def place(self, instance: str) -> Place:
        """Return the node whose exporter is at *instance*."""
        name = self.names.get((self.job.cluster, instance))
        return Place(node=name or host(instance), instance=instance or None)

    def facts(self) -> JobFacts:
        """Return what the findings are made from; raises Trouble."""
        found, is_missing = self.found, self.job.state == RANKS_MISSING
        # The rules leave out the silent ranks of a job that is dead.
        silent = found["rank:rankskew_silent_seconds:max"] if is_missing else []
        if is_missing and not silent:
            silent = self._ask("rankskew_rank_silent_seconds")
        unprobed = self._ask("rankskew_gpu_rank_info", 'source="environ",') if is_missing else []
        judges = self.prometheus.query(
            f"group by (judge) (rankskew_job_judge_info{{{self.where}}})"
        )
        located = [
            *(*unprobed, *silent),
            *found["rank_stage:rankskew_hang_suspect:group"],
            *found["rank:rankskew_late:ratio"],
        ]
        late_gpus: dict[int, dict[str, float]] = defaultdict(dict)
        for rank, each in _of_ranks(found["rank_stage:rankskew_gpus_lost:sum"]):
            if each.value > 0:
                late_gpus[rank][each["stage"]] = each.value
        lines: dict[int, list[LineView]] = defaultdict(list)
        for rank, each in _of_ranks(found["rankskew_late_line_ratio"]):
            lines[rank].append(LineView(each["stage"], each["place"], each.value))
        return JobFacts(
            self.job,
            places=self.places(
                {rank.rank: "" for rank in self.job.ranks[:1]} | _instances(located)
            ),
            lines=lines,
            late_gpus=late_gpus,
            silent={rank: each.value for rank, each in _of_ranks(silent)},
            unprobed=[rank for rank, _ in _of_ranks(unprobed)],
            down=[
                self.place(each)
                for each in sorted(found.by("instance", "node:rankskew_exporter_down:group"))
            ],
            rotating=found.by("stage", "job_stage:rankskew_gpus_lost:sum"),
            reasons=reasons_in_order(found.by("reason", "job_reason:rankskew_not_judgeable:bool")),
            age_seconds=found.value("job:rankskew_starting_seconds:max")
            or found.value("job:rankskew_run_seconds:max"),
            judge=judges[0]["judge"] if len(judges) == 1 else None,
            judged_ranks=found.value("job:rankskew_ranks:sum"),
            thresholds=found.by("name", "job:rankskew_threshold:value"),
            gpu_hour_price=found.value("job:rankskew_gpu_hour_price:value"),
        )

    def places(self, wanted: Mapping[int, str]) -> dict[int, Place]:
        """Return where each rank runs, by the instance of its exporter if it is known."""
        known = self._infos("{}", wanted)
        if missing := wanted.keys() - known.keys():
            known |= self._infos(RECENTLY, {rank: wanted[rank] for rank in missing})
        return {
            rank: self._place(known.get(rank, {"instance": instance}))
            for rank, instance in wanted.items()
        }

    def _infos(self, form: str, wanted: Mapping[int, str]) -> dict[int, dict[str, str]]:
        """Return what is known of each rank, by its own exporter if *wanted* has one."""
        if not wanted:
            return {}
        names = "|".join(map(str, sorted(wanted)))
        found = self.prometheus.query(form.format(series(INFO, f'{self.where},rank=~"{names}"')))
        known: dict[int, dict[str, str]] = {}
        # rankskew_rank_info is the last, so that its words count.
        for rank, sample in _of_ranks(sorted(found, key=lambda each: each.name)):
            own = wanted.get(rank) or known.get(rank, sample.labels)["instance"]
            if sample["instance"] == own:
                told = {name: each for name, each in sample.labels.items() if each}
                known.setdefault(rank, {}).update(told)
        return known

    def _place(self, infos: Mapping[str, str]) -> Place:
        gpu, uuid, pid = (infos.get(name) for name in ("gpu", "gpu_uuid", "pid"))
        number = int(pid) if pid and pid.isdecimal() else None
        return replace(self.place(infos["instance"]), gpu=gpu, gpu_uuid=uuid, pid=number)

    def _ask(self, name: str, matchers: str = "") -> list[Sample]:
        return self.prometheus.query(f"{name}{{{matchers}{self.where}}}")


def _look(prometheus: Prometheus, job: JobStatus) -> Moment:
    """Return what is recorded of *job*; raises Trouble."""
    found = Recorded(prometheus.query(series(SERIES, _of(job))))
    return Moment(prometheus, job, found, names_of_nodes(prometheus, selector(cluster=job.cluster)))


def _instances(samples: Iterable[Sample]) -> dict[int, str]:
    """Return the instance that each rank in *samples* has."""
    return {rank: each["instance"] for rank, each in _of_ranks(samples)}


def _of(job: JobStatus) -> str:
    return selector(cluster=job.cluster, job_id=job.job_id)


def _of_ranks(samples: Iterable[Sample]) -> list[tuple[int, Sample]]:
    return [(int(each["rank"]), each) for each in samples if each["rank"].isdecimal()]


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
    places = moment.places(_instances(told))
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
        gpu=place.gpu or sample["gpu"] or None,
        gpu_uuid=sample["gpu_uuid"] or place.gpu_uuid,
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
    events = [*late_events(moment.job), *_began(moment)]
    age = moment.found.value("job:rankskew_run_seconds:max")
    if age is not None:
        events.append(Event(age, "The job started, or restarted."))
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
    steps = f"job:rankskew_step_seconds:max{{{moment.where}}}"
    found = moment.prometheus.query_range(steps, now - BACK_SECONDS, now, STEP_SECONDS)
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
    alerts = f'ALERTS_FOR_STATE{{alertname=~"Rankskew.*",{moment.where}}}'
    found = moment.prometheus.query(f"min by (alertname) ({alerts})")
    now = moment.prometheus.now
    return [Event(max(0.0, now - each.value), f"{each['alertname']} began.") for each in found]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"

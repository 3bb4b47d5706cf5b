"""Jobs of a whole fleet, from the series that the shipped rules record in a Prometheus."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.live.sentences import LateView
from exporter.vocabulary.words import reasons_in_order
from rank_probe.judge.verdict import DUTY
from rankskew.client.access import ANYONE, Access
from rankskew.client.fetch import Trouble
from rankskew.client.names import with_names
from rankskew.client.prometheus import Prometheus, Sample, selector
from rankskew.top import causes
from rankskew.top.model import (
    MOST_RANKS,
    NO_RANK,
    STATES,
    UNKNOWN,
    FleetStatus,
    JobStatus,
    in_order,
    no_such_job,
)
from rankskew.top.prometheus_ranks import with_ranks
from rankskew.top.state_sentence import state_sentence

# Each has a few series per job, however many ranks that has.
JOB_SERIES: Final = (
    "job:rankskew_(state:info|job:group|world_size:max|gpus_lost:sum|lost_cost_per_hour:sum"
    "|slowdown:max|step_seconds:max|coverage:ratio|hung:seconds|ranks_missing:sum)"
    "|job_kind:rankskew_gpus_lost:sum|job_reason:rankskew_not_judgeable:bool"
    "|node:rankskew_exporter_down:group|rank_stage:rankskew_hang_suspect:group"
    "|job_severity:rankskew_told:max5m"
)
# Each has series for late ranks only.
LATE_SERIES: Final = (
    "rank:rankskew_(late:ratio|gpus_lost:sum|told_gpus_lost:sum)"
    f"|rankskew_late_(since_timestamp_seconds|pause_seconds|pause_steps)|{causes.SERIES}"
)
NO_RULES: Final = (
    "This Prometheus scrapes exporters of Rankskew, but does not evaluate its rules; "
    "rankskew files DIR writes them."
)
NO_STATES: Final = (
    "This Prometheus does not record the state of jobs (job:rankskew_state:info): load the rules "
    "of this version; rankskew files DIR writes them."
)
NO_EXPORTER: Final = (
    "This Prometheus scrapes no exporter of Rankskew; add the nodes to its scrape_configs."
)


@dataclass(slots=True)
class JobSamples:
    """What the answers say of one job, by series."""

    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def value(self, name: str) -> float | None:
        """Return the value of a series that a job has once."""
        found = self.samples.get(name)
        return found[0].value if found else None

    def labels(self, name: str, label: str) -> list[str]:
        """Return the *label* of each series of that *name*."""
        return [sample[label] for sample in self.samples.get(name, ())]


def read_prometheus(
    url: str, cluster: str | None = None, job_id: str | None = None, access: Access = ANYONE
) -> FleetStatus:
    """Return what the Prometheus at *url* knows; if it cannot tell, the fleet has a trouble."""
    return ask(Prometheus(url, access=access), cluster, job_id)


def ask(
    prometheus: Prometheus, cluster: str | None = None, job_id: str | None = None
) -> FleetStatus:
    """Return what *prometheus* knows, as read_prometheus does."""
    url = prometheus.url
    try:
        jobs = in_order(_jobs(prometheus, cluster))
        if not jobs:
            return FleetStatus(url, troubles=[_why_none(prometheus, cluster)])
        trouble = None if job_id is None else _trouble(job_id, jobs)
        if trouble is not None:
            return FleetStatus(url, troubles=[trouble], timestamp_seconds=prometheus.now)
        shown = [job for job in jobs if job_id in (None, job.job_id)]
        focus = with_ranks(prometheus, shown[0]) if len(shown) == 1 else None
    except Trouble as trouble:
        return FleetStatus(url, troubles=[str(trouble)])
    troubles = [NO_STATES] if all(job.state == UNKNOWN for job in jobs) else []
    return FleetStatus(url, [focus] if focus else shown, troubles, focus, prometheus.now)


def _trouble(job_id: str, jobs: Sequence[JobStatus]) -> str | None:
    clusters = [job.cluster for job in jobs if job.job_id == job_id]
    if not clusters:
        return no_such_job(job_id, jobs)
    if len(clusters) > 1:
        return f"Several clusters have a job {job_id!r}; give one: --cluster {clusters[0]!r}."
    return None


def _why_none(prometheus: Prometheus, cluster: str | None) -> str:
    where = selector(cluster=cluster)
    if prometheus.query(f"count(rankskew_node_ranks{{{where}}})"):
        return NO_RULES
    if prometheus.query(f"count(rankskew_exporter_build_info{{{where}}})"):
        return NO_RANK
    return NO_EXPORTER if cluster is None else f"No exporter has the label cluster={cluster!r}."


def _jobs(prometheus: Prometheus, cluster: str | None) -> list[JobStatus]:
    where = selector(cluster=cluster)
    own = prometheus.query(f'{{__name__=~"{JOB_SERIES}",{where}}}'.replace(",}", "}"))
    late = prometheus.query(_of_costliest(LATE_SERIES, where))
    known = {causes.who(each) for each in late if each.name == causes.INFO}
    if any(causes.who(each) not in known for each in late):
        kept = causes.of_last_minute(prometheus, _of_costliest(causes.SERIES, where))
        late += [each for each in kept if causes.who(each) not in known]
    found = _by_job(with_names(prometheus, [*own, *late]))
    return [_job(*who, found[who], prometheus.now) for who in found]


def _of_costliest(series: str, where: str) -> str:
    costliest = f"topk by (cluster, job_id) ({MOST_RANKS}, rank:rankskew_gpus_lost:sum{{{where}}})"
    own = f'{{__name__=~"{series}",{where}}}'.replace(",}", "}")
    return f"{own} and on (cluster, job_id, rank, instance) {costliest}"


def _by_job(samples: Iterable[Sample]) -> dict[tuple[str, str], JobSamples]:
    found: dict[tuple[str, str], JobSamples] = defaultdict(JobSamples)
    for sample in samples:
        if sample["job_id"]:
            found[sample["cluster"], sample["job_id"]].samples[sample.name].append(sample)
    return found


def _job(cluster: str, job_id: str, found: JobSamples, now: float) -> JobStatus:
    late = _late(found, now)
    state = _state(found)
    world_size = found.value("job:rankskew_world_size:max")
    job = JobStatus(
        job_id=job_id,
        cluster=cluster,
        state=state,
        world_size=None if world_size is None else round(world_size),
        gpus_lost=found.value("job:rankskew_gpus_lost:sum"),
        lost_by_kind={s["kind"]: s.value for s in found.samples["job_kind:rankskew_gpus_lost:sum"]},
        cost_per_hour=found.value("job:rankskew_lost_cost_per_hour:sum"),
        late=late,
        culprit=_culprit(found, late),
        since_seconds=_since(found, late),
        slowdown=found.value("job:rankskew_slowdown:max"),
        step_seconds=found.value("job:rankskew_step_seconds:max"),
        coverage=found.value("job:rankskew_coverage:ratio"),
        reason=_reason(found),
    )
    sentence = state_sentence(job, found.samples)
    return causes.explained(replace(job, sentence=sentence))


def _state(found: JobSamples) -> str:
    states = [s for s in found.labels("job:rankskew_state:info", "state") if s in STATES]
    return min(states, key=STATES.index, default=UNKNOWN)


def _reason(found: JobSamples) -> str | None:
    reasons = reasons_in_order(found.labels("job_reason:rankskew_not_judgeable:bool", "reason"))
    return next(iter(reasons), None)


def _late(found: JobSamples, now: float) -> list[LateView]:
    lost = {each["rank"]: each.value for each in found.samples["rank:rankskew_gpus_lost:sum"]}
    since = {
        each["rank"]: max(0.0, now - each.value)
        for each in found.samples["rankskew_late_since_timestamp_seconds"]
    }
    why = causes.from_series(found.samples)
    # Those that are worth it cost enough together, or nobody is told; duties are judged apart.
    is_slow = "job_severity:rankskew_told:max5m" in found.samples
    all_told = found.samples["rank:rankskew_told_gpus_lost:sum"]
    told = {each["rank"] for each in all_told if is_slow or each["kind"] == DUTY}
    every, pause = (
        {each["rank"]: each.value for each in found.samples[f"rankskew_late_pause_{unit}"]}
        for unit in ("steps", "seconds")
    )
    late = [
        LateView(
            rank=int(each["rank"]),
            peer_group=each["peer_group"],
            stage=each["stage"],
            kind=each["kind"],
            ratio=each.value,
            gpus_lost=lost.get(each["rank"], 0.0),
            late_for_seconds=since.get(each["rank"], 0.0),
            is_here=True,  # One Prometheus sees all nodes.
            costs_enough=each["rank"] in told,
            cause=why.get(each["rank"]),
            every_steps=round(every.get(each["rank"], 0)),
            pause_seconds=pause.get(each["rank"], 0.0),
        )
        for each in found.samples["rank:rankskew_late:ratio"]
        if each["rank"].isdecimal()
    ]
    return sorted(late, key=lambda each: (not each.is_called_late, -each.gpus_lost))


def _culprit(found: JobSamples, late: Sequence[LateView]) -> tuple[int, str] | None:
    for suspect in found.samples["rank_stage:rankskew_hang_suspect:group"]:
        if suspect["rank"].isdecimal():
            return int(suspect["rank"]), suspect["stage"]
    return (late[0].rank, late[0].stage) if late and late[0].is_called_late else None


def _since(found: JobSamples, late: Sequence[LateView]) -> float | None:
    hung = found.value("job:rankskew_hung:seconds")
    if hung is not None:
        return hung
    return late[0].late_for_seconds or None if late and late[0].is_called_late else None

"""Jobs of a whole fleet, from the series that the shipped rules record in a Prometheus."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from exporter.causes.units import unit_of
from exporter.live import states
from exporter.live.causes import CauseView
from exporter.live.sentences import LateView, late_sentence
from exporter.live.wording import duration, listed
from exporter.vocabulary import words
from rank_probe.judge.verdict import DUTY
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus, Sample, selector, with_names
from rankskew.top.model import (
    MOST_RANKS,
    NO_RANK,
    STATES,
    UNKNOWN,
    FleetStatus,
    JobStatus,
    Rank,
    costliest_first,
    explained,
    in_order,
    newest,
    no_such_job,
    worth_a_row,
)

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
    "|rankskew_late_(since_timestamp_seconds|pause_seconds|pause_steps|cause_(info|share_ratio|figure))"
)
NO_RULES: Final = (
    "This Prometheus scrapes exporters of Rankskew, but does not evaluate its rules; "
    "rankskew files DIR writes them."
)
NO_EXPORTER: Final = (
    "This Prometheus scrapes no exporter of Rankskew; add the nodes to its scrape_configs."
)


class Recorded(defaultdict[str, list[Sample]]):
    """What is recorded of one job, or exposed of one rank, by series."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        super().__init__(list)
        for each in samples:
            self[each.name].append(each)

    def value(self, name: str) -> float | None:
        """Return the value of a series that exists at most once; None if it does not exist."""
        return self[name][0].value if self[name] else None

    def by(self, label: str, name: str) -> dict[str, float]:
        """Return the values of the series of that *name* by one of their labels."""
        return {each[label]: each.value for each in self[name]}


def read_fleet(
    prometheus: Prometheus, cluster: str | None = None, job_id: str | None = None
) -> FleetStatus:
    """Return what *prometheus* knows; if it cannot tell, the fleet has a trouble."""
    url = prometheus.url
    try:
        jobs = in_order(_jobs(prometheus, cluster))
        if not jobs:
            return FleetStatus(url, troubles=[_why_none(prometheus, cluster)])
        trouble = None if job_id is None else _trouble(job_id, jobs)
        if trouble is not None:
            return FleetStatus(url, troubles=[trouble], timestamp_seconds=prometheus.now)
        shown = [job for job in jobs if job_id in (None, job.job_id)]
        if len(shown) == 1:
            shown = [_with_ranks(prometheus, shown[0])]
    except Trouble as trouble:
        return FleetStatus(url, troubles=[str(trouble)])
    return FleetStatus(url, shown, timestamp_seconds=prometheus.now)


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


def series(names: str, matchers: str) -> str:
    """Return the selector of the series whose names match a regular expression."""
    name = f'__name__=~"{names}"'
    return f"{{{name},{matchers}}}" if matchers else f"{{{name}}}"


# ---- Jobs ----------------------------------------------------------------------------------------


def _jobs(prometheus: Prometheus, cluster: str | None) -> list[JobStatus]:
    where = selector(cluster=cluster)
    same = "on (cluster, job_id, rank, instance)"
    # A rank that no wait was measured for has no cost: such ranks come last.
    free = f"0 * rank:rankskew_late:ratio{{{where}}}"
    costs = f"rank:rankskew_gpus_lost:sum{{{where}}} or {same} {free}"
    costliest = f"topk by (cluster, job_id) ({MOST_RANKS}, {costs})"
    own = prometheus.query(series(JOB_SERIES, where))
    late = prometheus.query(f"{series(LATE_SERIES, where)} and {same} {costliest}")
    found: dict[tuple[str, str], Recorded] = defaultdict(Recorded)
    for sample in with_names(prometheus, [*own, *late]):
        if sample["job_id"]:
            found[sample["cluster"], sample["job_id"]][sample.name].append(sample)
    return [_job(*who, each, prometheus.now) for who, each in found.items()]


def _job(cluster: str, job_id: str, found: Recorded, now: float) -> JobStatus:
    states_here = {*found.by("state", "job:rankskew_state:info")}
    world_size = found.value("job:rankskew_world_size:max")
    reasons = words.reasons_in_order(found.by("reason", "job_reason:rankskew_not_judgeable:bool"))
    suspects = found["rank_stage:rankskew_hang_suspect:group"]
    job = JobStatus(
        job_id=job_id,
        cluster=cluster,
        state=min(states_here & {*STATES}, key=STATES.index, default=UNKNOWN),
        world_size=round(world_size) if world_size else None,
        gpus_lost=found.value("job:rankskew_gpus_lost:sum"),
        lost_by_kind=found.by("kind", "job_kind:rankskew_gpus_lost:sum"),
        cost_per_hour=found.value("job:rankskew_lost_cost_per_hour:sum"),
        late=_late(found, now),
        culprit=next(
            ((int(each["rank"]), each["stage"]) for each in suspects if each["rank"].isdecimal()),
            None,
        ),
        since_seconds=found.value("job:rankskew_hung:seconds"),
        slowdown=found.value("job:rankskew_slowdown:max"),
        step_seconds=found.value("job:rankskew_step_seconds:max"),
        coverage=found.value("job:rankskew_coverage:ratio"),
        reason=next(iter(reasons), None),
    )
    return explained(replace(job, sentence=_sentence(job, found)))


def _late(found: Recorded, now: float) -> list[LateView]:
    lost = found.by("rank", "rank:rankskew_gpus_lost:sum")
    since = found.by("rank", "rankskew_late_since_timestamp_seconds")
    every = found.by("rank", "rankskew_late_pause_steps")
    pause = found.by("rank", "rankskew_late_pause_seconds")
    causes = _causes(found)
    # Late ranks are named only if they cost enough together; duties are judged separately.
    is_slow = bool(found["job_severity:rankskew_told:max5m"])
    all_told = found["rank:rankskew_told_gpus_lost:sum"]
    told = {each["rank"] for each in all_told if is_slow or each["kind"] == DUTY}
    late = [
        LateView(
            rank=int(rank),
            peer_group=each["peer_group"],
            stage=each["stage"],
            kind=each["kind"],
            ratio=each.value,
            gpus_lost=lost.get(rank, 0.0),
            late_for_seconds=max(0.0, now - since.get(rank, now)),
            is_here=True,  # One Prometheus sees all nodes.
            costs_enough=rank in told,
            cause=causes.get(rank),
            every_steps=round(every.get(rank, 0)),
            pause_seconds=pause.get(rank, 0.0),
        )
        for each in found["rank:rankskew_late:ratio"]
        if (rank := each["rank"]).isdecimal()
    ]
    return costliest_first(sorted(late, key=lambda each: each.rank))


def _causes(found: Recorded) -> dict[str, CauseView]:
    """Return the causes of late ranks, as their exporters tell them, by rank."""
    shares = found.by("rank", "rankskew_late_cause_share_ratio")
    figures = {
        (each["rank"], each["of"]): each.value for each in found["rankskew_late_cause_figure"]
    }
    return {
        each["rank"]: CauseView(
            cause=each["cause"],
            detail=each["detail"],
            share=shares.get(each["rank"], 0.0),
            sentence=each["sentence"],
            first_action=each["first_action"],
            figure=each["figure"],
            value=figures.get((each["rank"], "rank")),
            peers_value=figures.get((each["rank"], "peers")),
            unit=unit_of(each["figure"]),
        )
        for each in found["rankskew_late_cause_info"]
    }


# ---- The state in a sentence; an exporter says it itself -----------------------------------------


def _sentence(job: JobStatus, found: Recorded) -> str:
    late = [each for each in job.late if each.is_called_late]
    if job.state in (states.STRAGGLER, states.SLOW_NODE, UNKNOWN) and late:
        return late_sentence(late, job.world_size or len(late))
    if job.state == states.HUNG:
        since = "" if job.since_seconds is None else f" for {duration(job.since_seconds)}"
        return f"No step{since}: {_held_up_by(found)}."
    if job.state == states.EXPORTER_DOWN:
        nodes = sorted(found.by("instance", "node:rankskew_exporter_down:group"))
        where = f" on {listed(nodes)}" if nodes else " of the job"
        return f"An exporter{where} does not answer, so what its ranks do is not known."
    if job.state == states.RANKS_MISSING:
        missing = found.value("job:rankskew_ranks_missing:sum")
        if missing is None:
            return "Ranks have gone silent: dead, stopped, or unable to reach their exporter."
        return f"{missing:.0f} of {job.world_size} ranks are not seen by any exporter."
    if job.state == states.NOT_JUDGEABLE:
        return f"Cannot judge this job: {(job.reason or 'no verdict').replace('_', ' ')}."
    return "" if job.state == UNKNOWN else words.STATES[job.state].sentence


def _held_up_by(found: Recorded) -> str:
    suspects = found["rank_stage:rankskew_hang_suspect:group"]
    if not suspects:
        return "all ranks wait in a collective"
    first = suspects[0]
    be = "is" if first["stage"] in ("frozen", "finished", "busy") else "is stuck in"
    return f"rank {first['rank']} on {first['instance']} {be} {first['stage']}"


# ---- The ranks of one job that are worth a row ---------------------------------------------------

# Two samples, even if Prometheus scrapes once a minute.
WINDOW: Final = "2m"
RANK_SERIES: Final = (
    "rankskew_(rank_info|gpu_rank_info|heartbeat_timestamp_seconds|last_step_timestamp_seconds"
    "|rank_silent_seconds|rank_finished|stage_elapsed_seconds|steps_total)"
)
STAGE_SERIES: Final = "rankskew_stage_seconds_total"


def _with_ranks(prometheus: Prometheus, job: JobStatus) -> JobStatus:
    where = selector(cluster=job.cluster, job_id=job.job_id)
    chosen = {str(late.rank) for late in job.late} | _chosen(prometheus, where)
    if job.culprit is not None:
        chosen.add(str(job.culprit[0]))
    those = f'{where},rank=~"{"|".join(sorted(chosen))}"'
    facts = prometheus.query(series(RANK_SERIES, those))
    stages = prometheus.query(_per_step(STAGE_SERIES, those))
    facts += [replace(each, name=STAGE_SERIES) for each in stages]
    by_process: dict[tuple[int, str], Recorded] = defaultdict(Recorded)
    for each in with_names(prometheus, facts):
        if each["rank"].isdecimal():
            by_process[int(each["rank"]), each["instance"]][each.name].append(each)
    late = {each.rank: each for each in job.late}
    ranks = newest(
        _rank(number, instance, known, late.get(number), prometheus.now)
        for (number, instance), known in by_process.items()
    )
    counted = prometheus.query(f"count(group by (rank) (rankskew_steps_total{{{where}}}))")
    seen = round(counted[0].value) if counted else len(ranks)
    steps = [each.value for each in facts if each.name == "rankskew_steps_total"]
    ranks = worth_a_row(replace(job, ranks=ranks))
    return replace(job, ranks=ranks, ranks_seen=seen, steps=round(max(steps)) if steps else None)


def _chosen(prometheus: Prometheus, where: str) -> set[str]:
    """Return the slowest ranks, those with the fewest steps, the silent, those without a probe."""
    found = prometheus.query(
        " or on (rank, instance) ".join(
            (
                f"topk({MOST_RANKS}, {_per_step('rankskew_busy_seconds_total', where)})",
                f"bottomk({MOST_RANKS}, rankskew_steps_total{{{where}}})",
                f"topk({MOST_RANKS}, rank:rankskew_silent_seconds:max{{{where}}})",
                f'topk({MOST_RANKS}, rankskew_gpu_rank_info{{source="environ",{where}}})',
            )
        )
    )
    return {sample["rank"] for sample in found if sample["rank"].isdecimal()}


def _per_step(seconds: str, where: str) -> str:
    return (
        f"rate({seconds}{{{where}}}[{WINDOW}]) / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{where}}}[{WINDOW}]) > 0)"
    )


def _rank(number: int, instance: str, known: Recorded, late: LateView | None, now: float) -> Rank:
    info, on_gpu, elapsed = (
        next(iter(known[f"rankskew_{name}"]), Sample("", {}, 0.0))
        for name in ("rank_info", "gpu_rank_info", "stage_elapsed_seconds")
    )

    def ago(name: str) -> float | None:
        at = known.value(name)
        return None if at is None else max(0.0, now - at)

    return Rank(
        rank=number,
        node=instance or None,
        local_rank=info["local_rank"] or on_gpu["local_rank"] or None,
        gpu=on_gpu["gpu"] or None,
        gpu_uuid=info["gpu_uuid"] or on_gpu["gpu_uuid"] or None,
        pid=int(info["pid"]) if info["pid"].isdecimal() else None,
        stage_seconds=known.by("stage", STAGE_SERIES) or None,
        late=late,
        stage=elapsed["stage"] or None,
        stage_elapsed_seconds=known.value("rankskew_stage_elapsed_seconds"),
        report_age_seconds=ago("rankskew_heartbeat_timestamp_seconds"),
        last_step_age_seconds=ago("rankskew_last_step_timestamp_seconds"),
        silent=bool(known["rankskew_rank_silent_seconds"]),
        finished=bool(known["rankskew_rank_finished"]),
    )

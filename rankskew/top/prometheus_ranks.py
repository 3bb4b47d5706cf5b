"""The ranks of one job that are worth a row, from a Prometheus."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from exporter.live import states
from exporter.live.wording import MOST_NAMES, duration
from rankskew.client.fields import label, whole
from rankskew.client.names import with_names
from rankskew.client.prometheus import Prometheus, Sample, selector
from rankskew.top.model import MOST_RANKS, JobStatus, Rank, worth_a_row

# Two samples, even if Prometheus scrapes once a minute.
WINDOW: Final = "2m"
RANK_SERIES: Final = (
    "rankskew_(rank_info|gpu_rank_info|heartbeat_timestamp_seconds|last_step_timestamp_seconds"
    "|rank_silent_seconds|rank_finished|stage_elapsed_seconds|steps_total"
    "|rank_last_event_timestamp_seconds)"
)
SAME_RANK: Final = "or on (rank, instance)"


def with_ranks(prometheus: Prometheus, job: JobStatus) -> JobStatus:
    """Return *job* with those of its ranks that are worth a row; raises Trouble."""
    where = selector(cluster=job.cluster, job_id=job.job_id)
    chosen = {str(late.rank) for late in job.late} | _chosen(prometheus, where)
    if job.culprit is not None:
        chosen.add(str(job.culprit[0]))
    those = f'{where},rank=~"{"|".join(sorted(chosen))}"'
    facts = with_names(prometheus, prometheus.query(f'{{__name__=~"{RANK_SERIES}",{those}}}'))
    stages = prometheus.query(_per_step("rankskew_stage_seconds_total", those))
    stages = with_names(prometheus, stages)
    ranks = _ranks(job, facts, stages, prometheus.now)
    shown, _ = worth_a_row(ranks, job.state)
    seen = _count(prometheus, where) or len(ranks)
    steps = max((s.value for s in facts if s.name == "rankskew_steps_total"), default=None)
    return replace(
        job,
        ranks=shown,
        ranks_seen=seen,
        ranks_left_out=max(0, seen - len(shown)),
        steps=None if steps is None else round(steps),
        details=(*job.details, *_last_events(job, ranks)),
    )


def _last_events(job: JobStatus, ranks: Sequence[Rank]) -> list[str]:
    """Say what the ranks that a stalled *job* waits for did last, as the live page does."""
    if job.state == states.HUNG:
        those = [rank for rank in ranks if job.culprit and rank.rank == job.culprit[0]]
    elif job.state == states.RANKS_MISSING:
        those = [rank for rank in ranks if rank.silent]
    else:
        those = list(ranks) if job.state == states.STARTING else []
    told = [rank for rank in those if rank.last_event is not None]
    return [f"Last event of rank {rank.rank}: {rank.last_event}." for rank in told[:MOST_NAMES]]


def _chosen(prometheus: Prometheus, where: str) -> set[str]:
    """Return the slowest ranks, those with the fewest steps, the silent, those without a probe."""
    found = prometheus.query(
        f"topk({MOST_RANKS}, {_per_step('rankskew_busy_seconds_total', where)})"
        f" {SAME_RANK} bottomk({MOST_RANKS}, rankskew_steps_total{{{where}}})"
        f" {SAME_RANK} topk({MOST_RANKS}, rank:rankskew_silent_seconds:max{{{where}}})"
        f' {SAME_RANK} topk({MOST_RANKS}, rankskew_gpu_rank_info{{source="environ",{where}}})'
    )
    return {sample["rank"] for sample in found if sample["rank"].isdecimal()}


def _per_step(seconds: str, where: str) -> str:
    return (
        f"rate({seconds}{{{where}}}[{WINDOW}]) / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{where}}}[{WINDOW}]) > 0)"
    )


def _count(prometheus: Prometheus, where: str) -> int | None:
    found = prometheus.query(f"count(group by (rank) (rankskew_steps_total{{{where}}}))")
    return round(found[0].value) if found else None


def _ranks(
    job: JobStatus, facts: Sequence[Sample], stages: Sequence[Sample], now: float
) -> list[Rank]:
    by_rank: dict[tuple[int, str], dict[str, Sample]] = defaultdict(dict)
    seconds: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for sample in facts:
        if sample["rank"].isdecimal():
            by_rank[_who(sample)][sample.name] = sample
    for sample in stages:
        if sample["rank"].isdecimal():
            seconds[_who(sample)][sample["stage"]] = sample.value
    late = {each.rank: each for each in job.late}
    newest: dict[int, Rank] = {}
    for who, known in by_rank.items():
        rank = replace(_rank(*who, known, now), late=late.get(who[0]))
        rank = replace(rank, stage_seconds=seconds.get(who))
        other = newest.get(rank.rank)
        if other is None or _age(rank) < _age(other):
            newest[rank.rank] = rank
    return list(newest.values())


def _who(sample: Sample) -> tuple[int, str]:
    return int(sample["rank"]), sample["instance"]


def _age(rank: Rank) -> float:
    return float("inf") if rank.report_age_seconds is None else rank.report_age_seconds


def _rank(number: int, instance: str, known: Mapping[str, Sample], now: float) -> Rank:
    nothing = Sample("", {}, 0.0)
    info = known.get("rankskew_rank_info", nothing)
    on_gpu = known.get("rankskew_gpu_rank_info", nothing)
    elapsed = known.get("rankskew_stage_elapsed_seconds")
    return Rank(
        rank=number,
        node=instance or None,
        local_rank=label(info["local_rank"] or on_gpu["local_rank"]),
        gpu=label(on_gpu["gpu"]),
        gpu_uuid=label(info["gpu_uuid"] or on_gpu["gpu_uuid"]),
        pid=whole(info["pid"]),
        stage=elapsed["stage"] if elapsed else None,
        stage_elapsed_seconds=elapsed.value if elapsed else None,
        report_age_seconds=_ago(known.get("rankskew_heartbeat_timestamp_seconds"), now),
        last_step_age_seconds=_ago(known.get("rankskew_last_step_timestamp_seconds"), now),
        silent="rankskew_rank_silent_seconds" in known,
        finished="rankskew_rank_finished" in known,
        last_event=_event(known.get("rankskew_rank_last_event_timestamp_seconds"), now),
    )


def _event(last: Sample | None, now: float) -> str | None:
    if last is None:
        return None
    return f"{last['event']} {last['state']} {duration(max(0.0, now - last.value))} ago"


def _ago(sample: Sample | None, now: float) -> float | None:
    return None if sample is None else max(0.0, now - sample.value)

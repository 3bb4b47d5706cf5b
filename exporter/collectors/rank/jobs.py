"""Jobs: the verdict on each, by whom, and the state of its ranks on this node, once per node."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.ranks.jobs import JOIN, NodeJob, Spoken
from exporter.ranks.node_jobs import NodeJobs
from rank_probe.stages import STAGES
from rank_probe.verdict import LOST_KINDS


class JobsCollector:
    """Expose every job with a rank on this node; call from the event loop, where the store is."""

    name = "jobs"
    interval_seconds = 0.0

    def __init__(self, jobs: NodeJobs) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        jobs = self._jobs.now()
        said = [(job, spoken) for job in jobs if (spoken := job.verdict()) is not None]
        yield from _lost(said)
        yield from _steps(said)
        yield from _judged(said)
        yield _reasons(said)
        yield from _ranks(jobs)
        yield from _ages(jobs)


Said = Sequence[tuple[NodeJob, Spoken]]


def _lost(said: Said) -> Iterator[Metric]:
    lost = GaugeMetricFamily(
        "rankskew_job_gpus_lost",
        "GPUs of the whole job that do nothing but wait, by reason: unequal peer groups, "
        "persistently late ranks, ranks that are late in turn, or a wait that all ranks have in "
        "common; mean of the last minute (probe, judge of the job).",
        labels=["job_id", "kind"],
    )
    rotating = GaugeMetricFamily(
        "rankskew_job_stage_gpus_lost",
        "GPUs of the whole job that wait for ranks that are late in turn, by the stage in which "
        "those are late; mean of the last minute (probe, judge of the job).",
        labels=["job_id", "stage"],
    )
    for job, spoken in said:
        verdict = spoken.verdict
        for kind in LOST_KINDS:
            if kind in verdict.gpus_lost:
                lost.add_metric([job.job_id, kind], verdict.gpus_lost[kind])
        for stage in STAGES:
            if stage in verdict.rotating:
                rotating.add_metric([job.job_id, stage], verdict.rotating[stage])
    yield from (lost, rotating)


def _steps(said: Said) -> Iterator[Metric]:
    slowdown = GaugeMetricFamily(
        "rankskew_job_slowdown_ratio",
        "Length of the job's steps divided by their length without the late ranks; mean of the "
        "last minute (probe, judge of the job).",
        labels=["job_id"],
    )
    step = GaugeMetricFamily(
        "rankskew_job_step_seconds",
        "Length of a step of the job, in seconds; mean of the last minute (probe, judge of the "
        "job).",
        labels=["job_id"],
    )
    for job, spoken in said:
        for family, value in (
            (slowdown, spoken.verdict.slowdown),
            (step, spoken.verdict.step_seconds),
        ):
            if value is not None:
                family.add_metric([job.job_id], value)
    yield from (slowdown, step)


def _judged(said: Said) -> Iterator[Metric]:
    judge = GaugeMetricFamily(
        "rankskew_job_judge_info",
        "Who says which ranks of the job are late: the join, which compares all of them, or this "
        "node, which compares its own because no join speaks; always 1 (exporter).",
        labels=["job_id", "judge"],
    )
    ranks = GaugeMetricFamily(
        "rankskew_job_ranks",
        "Judged ranks in each peer group of the job, on all nodes; if this node is the judge, on "
        "this one (probe, judge of the job).",
        labels=["job_id", "peer_group"],
    )
    absent = GaugeMetricFamily(
        "rankskew_job_absent_ranks",
        "Ranks of the job that have never finished a step that all others have; only with the "
        "join (probe, judge of the job).",
        labels=["job_id"],
    )
    coverage = GaugeMetricFamily(
        "rankskew_job_coverage_ratio",
        "Share of the job's ranks that are judged, times the share of their steps that were "
        "joined in the last minute; only with the join (probe, judge of the job).",
        labels=["job_id"],
    )
    for job, spoken in said:
        judge.add_metric([job.job_id, spoken.judge], 1)
        for peer_group, count in sorted(spoken.verdict.ranks.items()):
            ranks.add_metric([job.job_id, peer_group], count)
        if spoken.judge == JOIN:
            absent.add_metric([job.job_id], spoken.verdict.absent)
        if (share := job.coverage) is not None:
            coverage.add_metric([job.job_id], share)
    yield from (judge, ranks, absent, coverage)


def _reasons(said: Said) -> Metric:
    reasons = GaugeMetricFamily(
        "rankskew_job_not_judgeable",
        "Reason why the job cannot be judged; always 1, absent while the job is judged (probe, "
        "judge of the job).",
        labels=["job_id", "reason"],
    )
    for job, spoken in said:
        if spoken.verdict.reason is not None:
            reasons.add_metric([job.job_id, spoken.verdict.reason], 1)
    return reasons


def _ranks(jobs: Sequence[NodeJob]) -> Iterator[Metric]:
    ranks = GaugeMetricFamily(
        "rankskew_node_ranks",
        "Ranks of the job on this node: beating, silent (no report for 10 s) or finished "
        "(exporter).",
        labels=["job_id", "state"],
    )
    world_size = GaugeMetricFamily(
        "rankskew_node_world_size",
        "Ranks of the job on all nodes, according to the reporting ranks on this node (probe).",
        labels=["job_id"],
    )
    stepping = GaugeMetricFamily(
        "rankskew_node_stepping_ranks",
        "Reporting ranks of the job on this node that have finished a step (probe).",
        labels=["job_id"],
    )
    for job in jobs:
        states = {"beating": job.beating, "silent": job.silent, "finished": job.finished}
        for state, those in states.items():
            ranks.add_metric([job.job_id, state], len(those))
        if job.world_size is not None:
            world_size.add_metric([job.job_id], job.world_size)
        stepping.add_metric([job.job_id], sum(rank.snapshot.steps > 0 for rank in job.beating))
    yield from (ranks, world_size, stepping)


def _ages(jobs: Sequence[NodeJob]) -> Iterator[Metric]:
    run = GaugeMetricFamily(
        "rankskew_node_run_seconds",
        "Age of the oldest reporting process of the job on this node, in seconds (probe).",
        labels=["job_id"],
    )
    starting = GaugeMetricFamily(
        "rankskew_node_starting_seconds",
        "How long the job has been starting, in seconds: no rank of it on this node has finished a "
        "step; a start that is repeated within five minutes is the same (exporter).",
        labels=["job_id"],
    )
    last_step = GaugeMetricFamily(
        "rankskew_node_last_step_age_seconds",
        "Time since any reporting rank of the job on this node last finished a step, in seconds; "
        "absent before the first step and while the probes are off (probe).",
        labels=["job_id"],
    )
    for job in jobs:
        for family, age in (
            (run, job.run_seconds),
            (starting, job.starting_seconds),
            (last_step, job.last_step_age_seconds),
        ):
            if age is not None:
                family.add_metric([job.job_id], age)
    yield from (run, starting, last_step)

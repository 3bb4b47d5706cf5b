"""Jobs: the verdict on each, by whom, and the state of its ranks on this node, once per node."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from exporter.collectors.table import Row, families, in_order
from exporter.ranks.jobs import JOIN, NodeJob
from exporter.ranks.node_jobs import NodeJobs
from rank_probe.judge.verdict import LOST_KINDS, Verdict
from rank_probe.wire.stages import STAGES


class JudgedJob(NamedTuple):
    """A job, with the verdict on it and who judges."""

    job: NodeJob
    verdict: Verdict
    judge: str


VERDICTS: Final[tuple[Row[JudgedJob], ...]] = (
    Row(
        "rankskew_job_gpus_lost",
        "GPUs of the whole job that do nothing but wait, by reason: unequal peer groups, "
        "persistently late ranks, ranks that are late in turn, or a wait that all ranks have in "
        "common; mean of the last minute (probe, judge of the job).",
        lambda judged: in_order(judged.verdict.gpus_lost, LOST_KINDS),
        ("kind",),
    ),
    Row(
        "rankskew_job_stage_gpus_lost",
        "GPUs of the whole job that wait for ranks that are late in turn, by the stage in which "
        "those are late; mean of the last minute (probe, judge of the job).",
        lambda judged: in_order(judged.verdict.rotating, STAGES),
        ("stage",),
    ),
    Row(
        "rankskew_job_slowdown_ratio",
        "Length of the job's steps divided by their length without the late ranks; mean of the "
        "last minute (probe, judge of the job).",
        lambda judged: judged.verdict.slowdown,
    ),
    Row(
        "rankskew_job_step_seconds",
        "Length of a step of the job, in seconds; mean of the last minute (probe, judge of the "
        "job).",
        lambda judged: judged.verdict.step_seconds,
    ),
    Row(
        "rankskew_job_judge_info",
        "Who says which ranks of the job are late: the join, which compares all of them, or this "
        "node, which compares its own because no join speaks; always 1 (exporter).",
        lambda judged: {judged.judge: 1.0},
        ("judge",),
    ),
    Row(
        "rankskew_job_ranks",
        "Judged ranks in each peer group of the job, on all nodes; if this node is the judge, on "
        "this one (probe, judge of the job).",
        lambda judged: dict(sorted(judged.verdict.ranks.items())),
        ("peer_group",),
    ),
    Row(
        "rankskew_job_absent_ranks",
        "Ranks of the job that have never finished a step that all others have; only with the "
        "join (probe, judge of the job).",
        lambda judged: judged.verdict.absent if judged.judge == JOIN else None,
    ),
    Row(
        "rankskew_job_coverage_ratio",
        "Share of the job's ranks that are judged, times the share of their steps that were "
        "joined in the last minute; only with the join (probe, judge of the job).",
        lambda judged: judged.job.coverage,
    ),
    Row(
        "rankskew_job_not_judgeable",
        "Reason why the job cannot be judged; always 1, absent while the job is judged (probe, "
        "judge of the job).",
        lambda judged: {} if judged.verdict.reason is None else {judged.verdict.reason: 1.0},
        ("reason",),
    ),
)
ON_THIS_NODE: Final[tuple[Row[NodeJob], ...]] = (
    Row(
        "rankskew_node_ranks",
        "Ranks of the job on this node: beating, silent (no report for 10 s) or finished "
        "(exporter).",
        lambda job: {
            "beating": len(job.beating),
            "silent": len(job.silent),
            "finished": len(job.finished),
        },
        ("state",),
    ),
    Row(
        "rankskew_node_world_size",
        "Ranks of the job on all nodes, according to the reporting ranks on this node (probe).",
        lambda job: job.world_size,
    ),
    Row(
        "rankskew_node_stepping_ranks",
        "Reporting ranks of the job on this node that have finished a step (probe).",
        lambda job: sum(rank.snapshot.steps > 0 for rank in job.beating),
    ),
    Row(
        "rankskew_node_run_seconds",
        "Age of the oldest reporting process of the job on this node, in seconds (probe).",
        lambda job: job.run_seconds,
    ),
    Row(
        "rankskew_node_starting_seconds",
        "How long the job has been starting, in seconds: no rank of it on this node has finished a "
        "step; a start that is repeated within five minutes is the same (exporter).",
        lambda job: job.starting_seconds,
    ),
    Row(
        "rankskew_node_last_step_age_seconds",
        "Time since any reporting rank of the job on this node last finished a step, in seconds; "
        "absent before the first step and while the probes are off (probe).",
        lambda job: job.last_step_age_seconds,
    ),
)


class JobsCollector:
    """Expose every job with a rank on this node; call from the event loop, where the store is."""

    name = "jobs"
    interval_seconds = 0.0

    def __init__(self, jobs: NodeJobs) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        jobs = self._jobs.now()
        judged = [
            ([job.job_id], JudgedJob(job, aged.verdict, aged.judge))
            for job in jobs
            if (aged := job.verdict()) is not None
        ]
        yield from families(VERDICTS, ["job_id"], judged)
        yield from families(ON_THIS_NODE, ["job_id"], [([job.job_id], job) for job in jobs])

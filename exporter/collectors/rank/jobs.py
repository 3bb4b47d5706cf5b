"""Jobs: the verdict on each, by whom, and the state of its ranks on this node, once per node."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from exporter.causes.model import Cause
from exporter.collectors.rank.late_causes import shortened
from exporter.collectors.rank.late_ranks import SAME_ONSET_SECONDS
from exporter.collectors.table import Row, families, in_order
from exporter.ranks.jobs import JOIN, AgedVerdict, NodeJob
from exporter.ranks.node_jobs import NodeJobs
from rank_probe.judge.verdict import LOST_KINDS, WAIT_KINDS, Change, Verdict
from rank_probe.wire.stages import STAGES


class JudgedJob(NamedTuple):
    """A job, with the verdict on it and who judges."""

    job: NodeJob
    verdict: Verdict
    judge: str


def _pauses(verdict: Verdict) -> Mapping[tuple[str, ...], float]:
    latest_last = reversed(verdict.pauses)
    ranks = ((each, "" if each.rank is None else str(each.rank)) for each in latest_last)
    return {(rank, each.stage): each.gpu_seconds for each, rank in ranks}


def _sets(verdict: Verdict) -> Mapping[tuple[str, ...], float]:
    largest_last = reversed(verdict.together)
    return {(those.stage, those.in_common): those.ranks for those in largest_last}


VERDICTS: Final[tuple[Row[JudgedJob], ...]] = (
    Row(
        "rankskew_job_gpus_lost",
        "GPUs of the whole job that do nothing but wait, by reason: unequal peer groups, "
        "persistently late ranks, a single long stop, ranks that are late in turn, ordinary noise, "
        "a wait that all ranks have in common, or stops of all ranks together; mean of the last "
        "minute (probe, judge of the job).",
        lambda judged: {
            kind: gpus
            for kind, gpus in in_order(judged.verdict.gpus_lost, LOST_KINDS).items()
            if gpus or kind in WAIT_KINDS
        },
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
        "rankskew_job_stall_ratio",
        "Share of the job's time in which all its ranks stop together in this stage, 0 to 1: for "
        "longer than usual now and then, or for data in each step (probe, judge of the job).",
        lambda judged: judged.verdict.stall_ratios,
        ("stage",),
    ),
    Row(
        "rankskew_job_pause_gpu_seconds",
        "GPU time that a single long stop of this rank has cost, or of all ranks where it is "
        "empty; the latest of each rank and stage in the last half hour (probe, judge of the job).",
        lambda judged: _pauses(judged.verdict),
        ("rank", "stage"),
    ),
    Row(
        "rankskew_job_late_together_ranks",
        "Ranks that became late in this stage at the same time, if only they have something in "
        "common, or if they are more than a third of the job; of several such sets the largest "
        "(probe, judge of the job).",
        lambda judged: _sets(judged.verdict),
        ("stage", "in_common"),
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
        "Ranks of the job that take no part in the steps of the others, such as evaluators; only "
        "with the join (probe, judge of the job).",
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


# Labels of a change: whose it is (all ranks, some, or those of a peer group), its stage, and what
# only these ranks have in common.
CHANGED: Final = ("scope", "stage", "in_common")
ALL, SET = "all", "set"


class ChangedJob(NamedTuple):
    """A job's changes, by CHANGED, when each began in Unix seconds, and why if that is known."""

    changes: Mapping[tuple[str, ...], Change]
    began: Mapping[tuple[str, ...], float]
    causes: Mapping[tuple[str, ...], Cause]


CHANGES: Final[tuple[Row[ChangedJob], ...]] = (
    Row(
        "rankskew_job_change_ratio",
        "How many times as long as before this stage takes, since the job became slower; of all "
        "ranks or of those of one peer group (probe, judge of the job).",
        lambda job: {key: change.ratio for key, change in job.changes.items()},
        CHANGED,
    ),
    Row(
        "rankskew_job_change_gpus",
        "GPUs of the whole job that this change costs, compared with the pace before (probe, judge "
        "of the job).",
        lambda job: {key: change.gpus for key, change in job.changes.items()},
        CHANGED,
    ),
    Row(
        "rankskew_job_change_since_timestamp_seconds",
        "Time at which the job became slower, in Unix seconds of the node's clock (probe, judge of "
        "the job).",
        lambda job: job.began,
        CHANGED,
    ),
    Row(
        "rankskew_job_change_cause_info",
        "Why all ranks of the job on this node, or those of a peer group, take longer than before, "
        "by the node's own past; always 1, absent if no measured cause accounts for half of the "
        "delay (exporter, from all that it reads).",
        lambda job: {
            (*key[:2], cause.cause, cause.detail, shortened(cause.sentence)): 1.0
            for key, cause in job.causes.items()
        },
        (*CHANGED[:2], "cause", "detail", "sentence"),
    ),
)


class JobsCollector:
    """Expose every job with a rank on this node; call from the event loop, where the store is.

    *why_slower* knows why a job's ranks here take longer than before. *clock* is the wall clock, in
    Unix seconds.
    """

    name = "jobs"
    interval_seconds = 0.0

    def __init__(
        self,
        jobs: NodeJobs,
        clock: Callable[[], float] = time.time,
        why_slower: Callable[[str, Change], Cause | None] = lambda job_id, change: None,
    ) -> None:
        self._jobs = jobs
        self._why_slower = why_slower
        self._clock = clock
        self._began: dict[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[Metric]:
        jobs = self._jobs.now()
        verdicts = [(job, aged) for job in jobs if (aged := job.verdict()) is not None]
        judged = [
            ([job.job_id], JudgedJob(job, aged.verdict, aged.judge)) for job, aged in verdicts
        ]
        yield from families(VERDICTS, ["job_id"], judged)
        changed = [([job.job_id], self._changed(job.job_id, aged)) for job, aged in verdicts]
        self._began = {
            (job_id, *key): began for (job_id,), job in changed for key, began in job.began.items()
        }
        yield from families(CHANGES, ["job_id"], changed)
        yield from families(ON_THIS_NODE, ["job_id"], [([job.job_id], job) for job in jobs])

    def _changed(self, job_id: str, aged: AgedVerdict) -> ChangedJob:
        groups = aged.verdict.ranks
        changes: dict[tuple[str, ...], Change] = {
            (_scope(change, len(groups)), change.stage, change.in_common): change
            for change in aged.verdict.changes
        }
        now = self._clock() - aged.age_seconds
        began: dict[tuple[str, ...], float] = {}
        for key, change in changes.items():
            onset = now - change.since_seconds
            told = self._began.get((job_id, *key), onset)
            began[key] = told if abs(told - onset) <= SAME_ONSET_SECONDS else onset
        found = {key: self._why_slower(job_id, change) for key, change in changes.items()}
        causes = {key: cause for key, cause in found.items() if cause is not None}
        return ChangedJob(changes, began, causes)


def _scope(change: Change, groups: int) -> str:
    if groups > 1:
        return change.peer_group
    return SET if change.slower else ALL

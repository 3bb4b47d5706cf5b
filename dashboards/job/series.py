"""The series that the panels of the job dashboard read."""

from collections.abc import Callable
from typing import Final

from dashboards.shared.board import firing
from dashboards.shared.variables import CLUSTER, JOB

# A selector or an expression at the time of each sample (""), or at the range's end (AT_END).
Series = Callable[[str], str]

AT_END: Final = " @ end()"

# Two clusters behind one data source may have jobs of one name; it is empty without clusters.
ON_JOB: Final = "on (cluster, job_id)"
RANK: Final = "on (cluster, peer_group, rank)"

# How much slower than its peers each late rank is, with the kind and the stage of its lateness.
LATE: Final = f"rank:rankskew_late:ratio{{{JOB}}}"
LATE_SINCE: Final = f"(rankskew_late_since_timestamp_seconds{{{JOB}}} * 1000)"
LOST: Final = f"rank:rankskew_gpus_lost:sum{{{JOB}}}"
LOST_BY_STAGE: Final = f"rank_stage:rankskew_gpus_lost:sum{{{JOB}}}"
# The loss while a different rank is late in each step, by the stage in which that rank is late.
ROTATING_BY_STAGE: Final = f"job_stage:rankskew_gpus_lost:sum{{{JOB}}}"
# Who judges: the job's own join, or each node its own ranks. Where the join speaks, it is right.
_JUDGE: Final = "group by (cluster, job_id, judge) (rankskew_job_judge_info{%s})"
_JOIN: Final = _JUDGE % f'judge="join",{JOB}'
JUDGE: Final = f"({_JOIN} or {ON_JOB} {_JUDGE % JOB})"
CAUSE: Final = f"rankskew_late_cause_info{{{JOB}}}"
# Each rank with the GPU it runs on now; recorded from rankskew_gpu_rank_info.
RANK_GPU: Final = f"rank:rankskew_gpu:group{{{JOB}}}"
# The same with the GPU's index on its node, as people call it.
GPU_INDEX: Final = f"rankskew_gpu_rank_info{{{JOB}}}"
# What stands where late ranks would.
NOBODY: Final = "No late rank is known"
# One series, labelled with the state of the job.
STATE: Final = f"job:rankskew_state:info{{{JOB}}}"
# The late ranks (and, without a rank, nodes) that are worth an alert, with stage and cause.
TOLD: Final = f"page:rankskew_gpus_lost:last1m{{%s,{JOB}}}"
HUNG: Final = f"job:rankskew_hung:seconds{{{JOB}}}"
# The rank for which a job that hangs waits.
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{JOB}}}"
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{JOB}}}"
FIRING: Final = firing(JOB)
SINCE_LAST_STEP: Final = f"min by (cluster) (rankskew_node_last_step_age_seconds{{{JOB}}})"

# A job may have 16,384 ranks: a panel shows the costliest late ones and a few others, never all.
# They are chosen at the end of the range, so that a line is one rank from end to end.
LATE_LATELY: Final = f"topk(10, max_over_time({LOST}[1h]{AT_END}))"
OTHERS_SHOWN: Final = 3


def busy(at: str = "") -> str:
    """Return the own work per step of every rank."""
    return per_step(f"rankskew_busy_seconds_total{{{JOB}}}", at)


def wait(at: str = "") -> str:
    """Return the wait per step of every rank."""
    return per_step(f'rankskew_stage_seconds_total{{stage="sync",{JOB}}}', at)


def stages() -> str:
    """Return the time per step of every rank in each stage of its own work."""
    return per_step(f'rankskew_stage_seconds_total{{stage!="sync",{JOB}}}', "")


def per_second(counter: str, at: str, only: str = "") -> str:
    """Return the rate of a *counter* of every rank; *only* is a further selector."""
    return f"rate({counter}{{{only}{JOB}}}[$__rate_interval]{at})"


def per_step(seconds: str, at: str) -> str:
    """Return the increase of a counter of every rank, per step."""
    window = f"[$__rate_interval]{at}"
    return (
        f"(rate({seconds}{window}) / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{JOB}}}{window}) > 0))"
    )


def late_now(series: str) -> str:
    """Return *series* of the ranks that are late now."""
    return f"{series} and {RANK} {LATE}"


def late_lately(series: Series) -> str:
    """Return *series* of the ranks that were late in the last hour of the range."""
    return f"{series('')} and {RANK} {LATE_LATELY}"


def others(series: Series, choose: str) -> str:
    """Return *series* of a few ranks that were not; *choose* is topk or bottomk."""
    chosen = f"{series(AT_END)} unless {RANK} {LATE_LATELY}"
    return f"{series('')} and {RANK} {choose}({OTHERS_SHOWN}, {chosen})"


def peers(series: str, each: str = "") -> str:
    """Return the median of *series* over the ranks of a peer group that are not late.

    *each* is a further label to keep, with a comma before it.
    """
    return f"quantile by (cluster, peer_group{each}) (0.5, {series} unless {RANK} {LATE})"


def beside_late(series: str) -> str:
    """Return *series* of a peer group once for each of its late ranks, labelled with the rank."""
    return f"sum by (cluster, rank) (0 * {LATE} + on (cluster, peer_group) group_left () {series})"


def gpu_mean(gauge: str) -> Series:
    """Return the mean of *gauge*, per GPU, over the last scrapes: single readings are coarse."""
    return lambda at: f"avg_over_time({gauge}{{{CLUSTER}}}[$__rate_interval]{at})"


def of_rank(gpu_series: Series) -> Series:
    """Return *gpu_series*, per GPU, for the GPUs that this job's ranks report as theirs."""
    return lambda at: (
        f"{RANK_GPU}{at} * on (cluster, instance, gpu_uuid) group_left () {gpu_series(at)}"
    )


def words(series: str, label: str) -> str:
    """Return *series* with spaces for the first two underscores in a *label*."""
    for _ in range(2):
        series = f'label_replace({series}, "{label}", "$1 $2", "{label}", "([^_]+)_(.+)")'
    return series


def figure_as(label: str, series: str) -> str:
    """Return the value of *series* as a *label*, to write it into a sentence."""
    return f'count_values by (cluster, job_id) ("{label}", {series})'

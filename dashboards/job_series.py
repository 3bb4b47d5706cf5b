"""The series that the panels of the job dashboard read."""

from collections.abc import Callable
from typing import Final

# A selector or an expression at the time of each sample (""), or at the range's end (AT_END).
Series = Callable[[str], str]

AT_END: Final = " @ end()"

JOB: Final = 'job_id="$job_id"'

# Of late ranks only: of every rank it would be too many series. USUAL is what to compare them with.
STAGE: Final = f"rank_stage:rankskew_stage_seconds_per_step:mean1m{{{JOB}}}"
OVER_USUAL: Final = f"rank_stage:rankskew_late_seconds_per_step:mean1m{{{JOB}}}"
USUAL: Final = f"group_stage:rankskew_stage_seconds_per_step:baseline1m{{{JOB}}}"
LOST: Final = f"rank:rankskew_gpus_lost:mean1m{{{JOB}}}"
LOST_BY_STAGE: Final = f"rank_stage:rankskew_gpus_lost:mean1m{{{JOB}}}"
# What is lost while another rank is late in each step, by the stage in which it is.
ROTATING_BY_STAGE: Final = f"job_stage:rankskew_gpus_lost:mean1m{{{JOB}}}"
# Whether the ranks compare their steps one by one (join), or means over a minute are compared.
SOURCE: Final = f"job_source:rankskew_gpus_lost:info{{{JOB}}}"
CAUSE: Final = f"rank:rankskew_cause:info{{{JOB}}}"
# Each rank with the GPU it runs on now; recorded from rankskew_gpu_rank_info.
RANK_GPU: Final = f"rank:rankskew_gpu:group{{{JOB}}}"
# The stage in which a late rank costs most.
LATE_IN: Final = f"topk by (peer_group, rank) (1, {LOST_BY_STAGE})"
FIRING: Final = f'ALERTS{{alertname=~"Rankskew.*",alertstate="firing",{JOB}}}'
SINCE_LAST_STEP: Final = f"time() - max(rankskew_last_step_timestamp_seconds{{{JOB}}})"
STRAGGLER: Final = f'{{alertname="RankskewStraggler",{JOB}}}'

# A job may have 16,384 ranks: a panel shows the costliest late ones and a few others, never all.
# They are chosen at the end of the range, so that a line is one rank from end to end.
LATE_LATELY: Final = f"topk(10, max_over_time({LOST}[1h]{AT_END}))"
OTHERS_SHOWN: Final = 3


def busy(at: str = "") -> str:
    """Return the own work per step of every rank."""
    return f"rank:rankskew_busy_seconds_per_step:mean1m{{{JOB}}}{at}"


def wait(at: str = "") -> str:
    """Return the wait per step of every rank."""
    return f"rank:rankskew_sync_seconds_per_step:mean1m{{{JOB}}}{at}"


def late_now(series: str) -> str:
    """Return *series* of the ranks that the others wait for now."""
    return f"{series} and on (peer_group, rank) {LOST}"


def late_lately(series: Series) -> str:
    """Return *series* of the ranks that were late in the last hour of the range."""
    return f"{series('')} and on (peer_group, rank) {LATE_LATELY}"


def others(series: Series, choose: str) -> str:
    """Return *series* of a few ranks that were not; *choose* is topk or bottomk."""
    chosen = f"{series(AT_END)} unless on (peer_group, rank) {LATE_LATELY}"
    return f"{series('')} and on (peer_group, rank) {choose}({OTHERS_SHOWN}, {chosen})"


def peers(series: str) -> str:
    """Return the median of *series* in each peer group."""
    return f"quantile by (peer_group) (0.5, {series})"


def beside_late(series: str) -> str:
    """Return *series* of a peer group once for each of its late ranks, labelled with the rank."""
    return f"sum by (rank) (0 * {LOST} + on (peer_group) group_left () {series})"


def of_rank(gpu_series: Series) -> Series:
    """Return *gpu_series*, one a GPU, of the GPUs that this job's ranks report as theirs."""
    return lambda at: f"{RANK_GPU}{at} * on (instance, gpu_uuid) group_left () {gpu_series(at)}"

"""The series that the panels of the fleet dashboard read: one per job or node, never per rank."""

from typing import Final

from dashboards.shared.variables import CLUSTER

JOB: Final = "on (cluster, job_id)"
RANK: Final = "on (cluster, job_id, rank)"

STATE: Final = f'job:rankskew_state:info{{state="%s",{CLUSTER}}}'
ANY_STATE: Final = f"job:rankskew_state:info{{{CLUSTER}}}"
LOST: Final = f"job:rankskew_gpus_lost:sum{{{CLUSTER}}}"
POWER: Final = f"job:rankskew_lost_power_watts:sum{{{CLUSTER}}}"
COST: Final = f"job:rankskew_lost_cost_per_hour:sum{{{CLUSTER}}}"
WORLD: Final = f"job:rankskew_world_size:max{{{CLUSTER}}}"

# GPUs of jobs without the probe. This reads a series per rank, so only instant queries may use it.
UNPROBED: Final = (
    "count by (cluster, job_id)"
    f" (rank:rankskew_gpu:group{{{CLUSTER}}} and {JOB} {STATE % 'no_probe'})"
)

# Only late ranks have these: a few per job.
LATE: Final = f"rank:rankskew_late:ratio{{{CLUSTER}}}"
RANK_LOST: Final = f"rank:rankskew_gpus_lost:sum{{{CLUSTER}}}"
CAUSE: Final = f"rankskew_late_cause_info{{{CLUSTER}}}"
HUNG: Final = f"job:rankskew_hung:seconds{{{CLUSTER}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{CLUSTER}}}"

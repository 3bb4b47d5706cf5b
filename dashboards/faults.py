"""What hardware says of a rank's GPU: the fault that explains why a job hangs."""

from dashboards.variables import CLUSTER

_FAULT = "gpu_fault:rankskew_gpu:max"


def faulty(ranks: str) -> str:
    """Return those of *ranks* whose GPU is faulty, labelled with the fault.

    *ranks* are series of gpu:rankskew_rank:group.
    """
    # A GPU that is lost often has an XID error too; the loss comes first.
    lost = f'0 * {_FAULT}{{fault="lost",{CLUSTER}}} + 2'
    faults = f"{lost} or 0 * {_FAULT}{{{CLUSTER}}} + 1"
    worst = f"topk by (cluster, instance, gpu_uuid) (1, {faults})"
    return f"({ranks}) * on (cluster, instance, gpu_uuid) group_left (fault) {worst}"

"""What hardware says of a rank's GPU: the fault that explains why a job hangs."""

from typing import Final

# What may stop a rank. The other faults slow it down, or say how its GPU is used.
STOPPING: Final = "lost|recovery|memory|nvlink|xid|pcie_link|pcie_errors|nvlink_errors|pstate"


def faults_of(ranks: str, selector: str) -> str:
    """Return the worst fault of the GPU of each of *ranks*, which have one; *selector* is theirs.

    A GPU that is lost often has an XID error too; the loss comes first.
    """
    fault = f'rankskew_gpu_fault{{fault=~"{STOPPING}",{selector}}}'
    lost = f'rankskew_gpu_fault{{fault="lost",{selector}}}'
    each = "cluster, job_id, rank, fault"
    worst = f"0 * group by ({each}) ({lost}) + 2 or group by ({each}) ({fault})"
    return f"topk by (cluster, job_id, rank) (1, {worst}) and on (cluster, job_id, rank) {ranks}"

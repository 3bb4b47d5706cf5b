"""A fault of one GPU, as reported for each rank that it concerns."""

from dataclasses import dataclass
from typing import Final

LOST: Final = "lost"
MISSING: Final = "missing"
NVML: Final = "nvml"
RECOVERY: Final = "recovery"
MEMORY: Final = "memory"
ROW_REMAP_PENDING: Final = "row_remap_pending"
NVLINK: Final = "nvlink"
NVLINK_ERRORS: Final = "nvlink_errors"
NVLINK_RECOVERIES: Final = "nvlink_recoveries"
FABRIC: Final = "fabric"
PCIE_LINK: Final = "pcie_link"
PCIE_ERRORS: Final = "pcie_errors"
PCIE_SATURATED: Final = "pcie_saturated"
PSTATE: Final = "pstate"
XID: Final = "xid"
THROTTLED: Final = "throttled"
FOREIGN_PROCESS: Final = "foreign_process"
SHARED: Final = "shared"
NUMA: Final = "numa"
STANDS_STILL: Final = "stands_still"
UNUSED: Final = "unused"

Who = tuple[str, str, str]  # A rank, by job_id, peer_group and rank.


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; *share* is 1, or how much of the time or of the link it takes.

    If *threshold* names one, only jobs for which *figure* exceeds that threshold get the fault.
    """

    fault: str
    detail: str = ""
    share: float = 1.0
    threshold: str = ""
    figure: float = 0.0


# The GPU, by index and UUID, with a rank on it, and what is wrong.
Told = tuple[tuple[str, str], Who, Fault]

"""The names of the checks, which are labels of the metric."""

from typing import Final

METRIC: Final = "rankskew_audit_check"
CHECKS: Final = (
    "reported",
    "device_per_rank",
    "device_order",
    "environment",
    "versions",
    "affinity",
    "numa",
    "cpus",
    "cpu_quota",
    "memory_limit",
    "shared_memory",
    "locked_memory",
    "open_files",
    "socket_interface",
    "mtu",
    "infiniband",
    "peer_paths",
)

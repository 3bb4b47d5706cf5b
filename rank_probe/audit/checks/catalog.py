"""Every check of the audit, in the order in which equally bad outcomes are shown."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rank_probe.audit.checks import (
    devices,
    infiniband,
    memory,
    network,
    open_files,
    peer_paths,
    processors,
    reports,
    sameness,
)
from rank_probe.audit.checks.findings import ORDER, AuditFinding, Outcome, outcome
from rank_probe.audit.checks.launch import Launch


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its *name* is a label of the metric, *find* yields at least one finding."""

    name: str
    find: Callable[[Launch], Iterator[AuditFinding]]


CHECKS: Final = (
    Check("reported", reports.reported),
    Check("device_per_rank", devices.device_per_rank),
    Check("device_order", devices.device_order),
    Check("environment", sameness.environment),
    Check("versions", sameness.versions),
    Check("affinity", processors.affinity),
    Check("numa", processors.numa),
    Check("cpus", processors.cpus),
    Check("cpu_quota", processors.cpu_quota),
    Check("memory_limit", memory.memory_limit),
    Check("shared_memory", memory.shared_memory),
    Check("locked_memory", memory.locked_memory),
    Check("open_files", open_files.open_files),
    Check("socket_interface", network.socket_interface),
    Check("mtu", network.mtu),
    Check("infiniband", infiniband.infiniband),
    Check("peer_paths", peer_paths.peer_paths),
)


def audit(launch: Launch) -> list[Outcome]:
    """Return the outcome of every check on *launch*, the worst first."""
    outcomes = [outcome(check.name, check.find(launch)) for check in CHECKS]
    return sorted(outcomes, key=lambda one: ORDER.index(one.status))

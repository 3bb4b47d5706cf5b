"""Every check of the audit, in the order in which equally bad outcomes are shown."""

from collections.abc import Callable, Iterator
from typing import Final

from rank_probe.audit.checks import (
    devices,
    infiniband,
    limits,
    network,
    peer_paths,
    processors,
    sameness,
)
from rank_probe.audit.checks.findings import ORDER, AuditFinding, Outcome, outcome
from rank_probe.audit.checks.launch import Launch

# Each yields at least one finding. Its own name is a label of the metric: see audit/names.py.
CHECKS: Final[tuple[Callable[[Launch], Iterator[AuditFinding]], ...]] = (
    sameness.reported,
    devices.device_per_rank,
    devices.device_order,
    sameness.environment,
    sameness.versions,
    processors.affinity,
    processors.numa,
    processors.cpus,
    processors.cpu_quota,
    limits.memory_limit,
    limits.shared_memory,
    limits.locked_memory,
    limits.open_files,
    network.socket_interface,
    network.mtu,
    infiniband.infiniband,
    peer_paths.peer_paths,
)


def audit(launch: Launch) -> list[Outcome]:
    """Return the outcome of every check on *launch*, the worst first."""
    outcomes = [outcome(check.__name__, check(launch)) for check in CHECKS]
    return sorted(outcomes, key=lambda one: ORDER.index(one.status))

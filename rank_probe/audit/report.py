"""Every check of the audit, and what `rank-probe audit` prints: lines, or one JSON document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

from rank_probe.audit import devices, limits, network, sameness
from rank_probe.audit.findings import (
    ORDER,
    AuditFinding,
    AuditStatus,
    Launch,
    Outcome,
    count,
    outcome,
)
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

# In the order in which equally bad outcomes are shown. Each yields at least one finding.
CHECKS: Final[tuple[Callable[[Launch], Iterator[AuditFinding]], ...]] = (
    sameness.reported,
    devices.device_per_rank,
    devices.device_order,
    devices.fabric,
    sameness.environment,
    sameness.versions,
    limits.affinity,
    limits.numa,
    limits.shared_memory,
    limits.locked_memory,
    network.socket_interface,
    network.mtu,
    network.infiniband,
)
SHOWN: Final = {
    AuditStatus.FAIL: "FAIL",
    AuditStatus.WARN: "WARN",
    AuditStatus.NOT_CHECKED: "not checked",
    AuditStatus.OK: "OK",
}
WIDTH: Final = max(map(len, SHOWN.values()))


def audit(launch: Launch) -> list[Outcome]:
    """Return the outcome of every check on *launch*, the worst first."""
    outcomes = [outcome(check.__name__, check(launch)) for check in CHECKS]
    return sorted(outcomes, key=lambda one: ORDER.index(one.status))


def failed(outcomes: Sequence[Outcome], strict: bool) -> bool:
    """Whether the launch should not start; *strict* makes a warning enough."""
    enough = (AuditStatus.FAIL, AuditStatus.WARN) if strict else (AuditStatus.FAIL,)
    return any(one.status in enough for one in outcomes)


def as_text(launch: Launch, outcomes: Sequence[Outcome], strict: bool) -> str:
    """Return a line for each finding, the worst first, and a last one that sums them up."""
    lines = [f"audit: {_subject(launch)}, rankskew {__version__}"]
    for one in outcomes:
        for finding in one.findings:
            lines.append(f"{SHOWN[finding.status]:{WIDTH}}  {one.check}: {finding.reason}")
            if finding.advice:
                lines.append(f"{'':{WIDTH}}  do: {finding.advice}")
        if one.more:
            lines.append(f"{'':{WIDTH}}  and {one.more} more of {one.check}")
    counts = {status: sum(one.status is status for one in outcomes) for status in AuditStatus}
    lines.append(
        f"{'problem' if failed(outcomes, strict) else 'ok'}: of {len(outcomes)} checks "
        f"{counts[AuditStatus.FAIL]} failed, {counts[AuditStatus.WARN]} warned, "
        f"{counts[AuditStatus.OK]} are fine, {counts[AuditStatus.NOT_CHECKED]} were not checked"
    )
    return "\n".join(lines)


def as_json(launch: Launch, outcomes: Sequence[Outcome], strict: bool) -> str:
    """Return the outcomes for scripts; docs/audit.md describes the fields."""
    said = {
        "ok": not failed(outcomes, strict),
        "probe": {"version": __version__},
        "ranks": 0 if launch.alone else len(launch.facts),
        "world_size": launch.world_size,
        "missing": list(launch.missing),
        "nodes": [machine[0].node for machine in launch.machines()],
        "checks": [
            {
                "check": one.check,
                "status": one.status.value,
                "findings": [asdict(finding) for finding in one.findings],
                "more": one.more,
            }
            for one in outcomes
        ],
    }
    return as_document("audit", said)


def _subject(launch: Launch) -> str:
    machines = launch.machines()
    if launch.alone:
        return f"node {machines[0][0].node}, for {count(launch.ranks_here, 'rank')}"
    of = f" of {launch.world_size}" if launch.world_size != len(launch.facts) else ""
    on = machines[0][0].node if len(machines) == 1 else f"{len(machines)} nodes"
    return f"{count(len(launch.facts), 'rank')}{of} on {on}"

"""What `rank-probe audit` prints: lines for people, one JSON document, or metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rank_probe.audit.checks.findings import AuditStatus, Outcome, count
from rank_probe.audit.checks.launch import Launch
from rank_probe.audit.names import METRIC
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

SHOWN: Final = {
    AuditStatus.FAIL: "FAIL",
    AuditStatus.WARN: "WARN",
    AuditStatus.NOT_CHECKED: "not checked",
    AuditStatus.OK: "OK",
}
WIDTH: Final = max(map(len, SHOWN.values()))


def failed(outcomes: Sequence[Outcome], strict: bool) -> bool:
    """Whether the launch should not start; *strict* makes a warning enough."""
    enough = (AuditStatus.FAIL, AuditStatus.WARN) if strict else (AuditStatus.FAIL,)
    return any(one.status in enough for one in outcomes)


def as_text(launch: Launch, outcomes: Sequence[Outcome], strict: bool) -> str:
    """Return a line for each finding, the worst first, and a last one that sums them up."""
    return "\n".join(_lines(launch, outcomes, strict))


def as_json(launch: Launch, outcomes: Sequence[Outcome], strict: bool) -> str:
    """Return the outcomes for scripts; docs/audit.md describes the fields."""
    said: dict[str, Any] = {
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


def as_metrics(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes for the textfile collector of node_exporter."""
    lines = [
        f"# HELP {METRIC} Outcome of each check of the last rank-probe audit: 1 for its status.",
        f"# TYPE {METRIC} gauge",
    ]
    for one in sorted(outcomes, key=lambda one: one.check):
        lines.append(f'{METRIC}{{check="{one.check}",status="{one.status.value}"}} 1')
    return "\n".join(lines) + "\n"


def _lines(launch: Launch, outcomes: Sequence[Outcome], strict: bool) -> Iterator[str]:
    yield f"audit: {_subject(launch)}, rankskew {__version__}"
    for one in outcomes:
        for finding in one.findings:
            yield f"{SHOWN[finding.status]:{WIDTH}}  {one.check}: {finding.reason}"
            if finding.advice:
                yield f"{'':{WIDTH}}  do: {finding.advice}"
        if one.more:
            yield f"{'':{WIDTH}}  and {one.more} more of {one.check}"
    counts = {status: sum(one.status is status for one in outcomes) for status in AuditStatus}
    summed = f"{counts[AuditStatus.FAIL]} failed, {counts[AuditStatus.WARN]} warned, "
    summed += (
        f"{counts[AuditStatus.OK]} are fine, {counts[AuditStatus.NOT_CHECKED]} were not checked"
    )
    yield f"{'problem' if failed(outcomes, strict) else 'ok'}: of {len(outcomes)} checks {summed}"


def _subject(launch: Launch) -> str:
    machines = launch.machines()
    if launch.alone:
        return f"node {machines[0][0].node}, for {count(launch.ranks_here, 'rank')}"
    of = f" of {launch.world_size}" if launch.world_size != len(launch.facts) else ""
    on = machines[0][0].node if len(machines) == 1 else f"{len(machines)} nodes"
    return f"{count(len(launch.facts), 'rank')}{of} on {on}"

"""Whether every rank reported at all."""

from collections.abc import Iterator

from rank_probe.audit.checks.findings import AuditFinding, fail, not_checked, ok, ranks
from rank_probe.audit.checks.launch import Launch


def reported(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks that did not report in time."""
    if launch.cannot_compare:
        yield not_checked(launch.cannot_compare)
    elif launch.missing:
        yield fail(
            f"{ranks(launch.missing)} of {launch.world_size} did not report",
            "look at the logs of these ranks and whether their nodes are up; a rank whose driver "
            "hangs does not report either; --timeout sets how long to wait",
        )
    else:
        yield ok(f"all {launch.world_size} ranks reported")

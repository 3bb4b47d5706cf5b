"""What should be the same on every rank: that it reported, its variables, and its versions."""

from collections.abc import Iterator, Mapping
from typing import Final

from rank_probe.audit.checks.findings import AuditFinding, AuditStatus, fail, not_checked, ok, ranks
from rank_probe.audit.checks.launch import Launch, majority
from rank_probe.audit.readings.variables import HIDDEN

# Variables of the libraries in which ranks talk to each other: a difference can hang the job.
COMMUNICATION: Final = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_")
# Names of this node's interfaces and adapters, which may differ between nodes for a reason.
OF_A_PLACE: Final = frozenset(
    {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"}
)
# Ranks with different ones cannot talk to each other, or compute different things.
MUST_MATCH: Final = frozenset({"torch", "cuda", "nccl"})
UNSET: Final = "unset"
MOST_VALUES: Final = 4


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


def environment(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks whose variables differ from those of most ranks."""
    if launch.cannot_compare:
        yield not_checked(launch.cannot_compare)
        return
    by_rank = {facts.rank: facts.compared for facts in launch.facts}
    names = sorted({name for compared in by_rank.values() for name in compared})
    for name in names:
        values = {rank: compared.get(name, UNSET) for rank, compared in by_rank.items()}
        matters = name.startswith(COMMUNICATION) and name not in OF_A_PLACE
        yield from _difference(
            name,
            values,
            AuditStatus.FAIL if matters else AuditStatus.WARN,
            "set it to the same value for all ranks, in the job script rather than in the shells "
            "or profiles of nodes",
        )
    yield ok(f"{len(names)} variables have the same values on {_all(launch)}")


def versions(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks whose libraries or GPUs differ from those of most ranks."""
    if launch.cannot_compare:
        yield not_checked(launch.cannot_compare)
        return
    by_rank = {facts.rank: facts.versions for facts in launch.facts}
    names = sorted({name for versions in by_rank.values() for name in versions})
    for name in names:
        values = {rank: versions.get(name) or "none" for rank, versions in by_rank.items()}
        yield from _difference(
            name,
            values,
            AuditStatus.FAIL if name in MUST_MATCH else AuditStatus.WARN,
            "start all ranks from the same image or environment, on nodes of the same kind",
        )
    told = ", ".join(f"{name} {value}" for name, value in launch.facts[0].versions.items() if value)
    yield ok(f"the same on {_all(launch)}: {told}")


def _difference(
    name: str, values: Mapping[int, str], status: AuditStatus, advice: str
) -> Iterator[AuditFinding]:
    """Yield the ranks that differ from most; if there is no majority, who has which value."""
    groups: dict[str, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    if len(groups) == 1:
        return
    usual = majority(values)
    odd = [f"{_value(value)} on {ranks(who)}" for value, who in groups.items() if value != usual]
    rest = f", and {len(odd) - MOST_VALUES} more values" if len(odd) > MOST_VALUES else ""
    told = f"{', '.join(odd[:MOST_VALUES])}{rest}"
    reason = f"{name} differs: {told}"
    if usual is not None:
        reason = f"{name} is {told}; on the others it is {_value(usual)}"
    yield AuditFinding(status, reason, advice)


def _value(value: str) -> str:
    if value.startswith(HIDDEN):
        return "another value, which may be secret,"
    return value or "empty"


def _all(launch: Launch) -> str:
    return f"all {len(launch.facts)} ranks"

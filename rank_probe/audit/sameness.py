"""What should be the same on every rank: that it reported, its variables, and its versions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rank_probe.audit.facts import HIDDEN
from rank_probe.audit.findings import (
    AuditFinding,
    Launch,
    fail,
    majority,
    not_checked,
    ok,
    ranks,
    warn,
)

# Variables of the communication libraries: a difference between ranks can hang the job.
COMMUNICATION: Final = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_")
# Names of this node's interfaces and adapters, which may differ between nodes for a reason.
OF_A_PLACE: Final = frozenset(
    {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"}
)
# Ranks with different versions of these cannot communicate, or compute different results.
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
    by_rank = {facts.rank: facts.compared for facts in launch.facts}
    yield from _differences(
        launch,
        by_rank,
        UNSET,
        lambda name: name.startswith(COMMUNICATION) and name not in OF_A_PLACE,
        "set it to the same value for all ranks, in the job script rather than in the shells or "
        "profiles of nodes",
    )
    number = len(set().union(*by_rank.values()))
    yield ok(f"{number} variables have the same values on all {len(by_rank)} ranks")


def versions(launch: Launch) -> Iterator[AuditFinding]:
    """Name the ranks whose libraries or GPUs differ from those of most ranks."""
    yield from _differences(
        launch,
        {one.rank: {name: v or "none" for name, v in one.versions.items()} for one in launch.facts},
        "none",
        MUST_MATCH.__contains__,
        "start all ranks from the same image or environment, on nodes of the same kind",
    )
    told = ", ".join(f"{name} {value}" for name, value in launch.facts[0].versions.items() if value)
    yield ok(f"the same on all {len(launch.facts)} ranks: {told}")


def _differences(
    launch: Launch,
    by_rank: Mapping[int, Mapping[str, str]],
    absent: str,
    matters: Callable[[str], bool],
    advice: str,
) -> Iterator[AuditFinding]:
    """Yield the ranks that differ from the majority, or without one the ranks of each value."""
    if launch.cannot_compare:
        yield not_checked(launch.cannot_compare)
        return
    for name in sorted(set().union(*by_rank.values())):
        values = {rank: known.get(name, absent) for rank, known in by_rank.items()}
        groups: dict[str, list[int]] = {}
        for rank, value in values.items():
            groups.setdefault(value, []).append(rank)
        if len(groups) == 1:
            continue
        usual = majority(values)
        odd = [
            f"{_value(value)} on {ranks(who)}" for value, who in groups.items() if value != usual
        ]
        rest = f", and {len(odd) - MOST_VALUES} more values" if len(odd) > MOST_VALUES else ""
        told = f"{', '.join(odd[:MOST_VALUES])}{rest}"
        reason = f"{name} differs: {told}"
        if usual is not None:
            reason = f"{name} is {told}; on the others it is {_value(usual)}"
        yield (fail if matters(name) else warn)(reason, advice)


def _value(value: str) -> str:
    if value.startswith(HIDDEN):
        return "another value, which may be secret,"
    return value or "empty"

"""Puts what stands out under one name: the node, the rank or the link, with all that is slow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rank_probe.collectives.units import show_bandwidth, show_seconds
from rank_probe.collectives.verdict import Scope, Suspect

Kind = Literal["node", "rank", "link"]


@dataclass(frozen=True, slots=True)
class Slow:
    """What is slow, and how: *measure*, *way*, and how it compares with its like."""

    measure: str
    way: str
    value: float
    typical: float
    factor: float


@dataclass(frozen=True, slots=True)
class Named:
    """One slow link, rank or node: its *ranks* (two for a link), its *hosts*, and its *slow*.

    Values are seconds for latency, bytes per second for bandwidth.
    """

    kind: Kind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    scope: Scope
    slow: tuple[Slow, ...]

    @property
    def worst(self) -> float:
        """By which factor its slowest reading is slower."""
        return max(one.factor for one in self.slow)

    @property
    def title(self) -> str:
        """Its name."""
        where = ", ".join(dict.fromkeys(self.hosts))
        match self.kind:
            case "node":
                return f"node {where}"
            case "rank":
                return f"rank {self.ranks[0]}'s link ({where})"
            case "link":
                return f"the link between ranks {self.ranks[0]} and {self.ranks[1]} ({where})"

    def sentence(self) -> str:
        """Return its name and its readings."""
        kind = "between nodes" if self.scope == "inter-node" else "inside nodes"
        return f"{self.title} is slow {kind}: {'; '.join(map(_reading, self.slow))}"


def named(found: Sequence[Suspect], hosts: Sequence[str]) -> list[Named]:
    """Return each subject of *found* once, the slowest first."""
    subjects: dict[tuple[Scope, tuple[int, ...]], list[Suspect]] = {}
    for one in found:
        subjects.setdefault((one.scope, tuple(sorted(one.ranks))), []).append(one)
    in_whole_nodes = _whole_nodes(subjects, hosts)
    result: list[Named] = []
    for (scope, host), ranks in in_whole_nodes.items():
        theirs = [one for rank in ranks for one in subjects.pop((scope, (rank,)))]
        result.append(Named("node", ranks, (host,), scope, _slow(theirs)))
    for (scope, ranks), theirs in subjects.items():
        kind: Kind = "rank" if len(ranks) == 1 else "link"
        where = tuple(hosts[rank] for rank in ranks)
        result.append(Named(kind, ranks, where, scope, _slow(theirs)))
    return sorted(result, key=lambda one: -one.worst)


def _whole_nodes(
    subjects: Iterable[tuple[Scope, tuple[int, ...]]], hosts: Sequence[str]
) -> dict[tuple[Scope, str], tuple[int, ...]]:
    """Return the nodes with several ranks all of which are slow in one scope."""
    slow: dict[tuple[Scope, str], list[int]] = {}
    for scope, ranks in subjects:
        if len(ranks) == 1:
            slow.setdefault((scope, hosts[ranks[0]]), []).append(ranks[0])
    return {
        (scope, host): tuple(sorted(ranks))
        for (scope, host), ranks in slow.items()
        if 1 < len(ranks) == hosts.count(host) < len(hosts)
    }


def _slow(found: Iterable[Suspect]) -> tuple[Slow, ...]:
    """Return the worst reading of each kind: both ways at once where both are slow."""
    worst: dict[tuple[str, str], Suspect] = {}
    for one in sorted(found, key=lambda one: one.factor):
        way = one.way if one.measure == "bandwidth" else ""
        if one.measure == "bandwidth" and len(one.ranks) == 2:
            way = f"from {one.ranks[0]} to {one.ranks[1]}"
        worst[one.measure, way] = one
    in_order = sorted(worst.items(), key=lambda item: (item[0][0] == "bandwidth", item[0]))
    return tuple(_readings(one, way) for (_, way), one in in_order)


def _readings(one: Suspect, way: str) -> Slow:
    if one.measure == "latency":
        return Slow("latency", way, one.cost, one.typical, one.factor)
    return Slow("bandwidth", way, 1 / one.cost, 1 / one.typical, one.factor)


def _reading(one: Slow) -> str:
    show = show_seconds if one.measure == "latency" else show_bandwidth
    way = f" {one.way}" if one.way.startswith("from") else ""
    verb = f"{one.way} at " if one.way in ("sends", "receives") else f"{one.measure}{way} "
    return f"{verb}{show(one.value)} against {show(one.typical)} ({one.factor:.1f} times)"

"""Puts what stands out under one name: the node, the rank or the link, with all that is slow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rank_probe.collectives.measurements.units import show_bandwidth, show_seconds
from rank_probe.collectives.verdict import Measure, Scope, Suspect

Kind = Literal["node", "rank", "link"]


@dataclass(frozen=True, slots=True)
class Slow:
    """One slow reading: *value* against the *typical* one, *factor* times slower.

    *ranks* is one rank, or sender and receiver of a link. *way* is `sends` or `receives` for the
    bandwidth of a rank, else empty.
    """

    measure: Measure
    ranks: tuple[int, ...]
    way: str
    value: float
    typical: float
    factor: float

    def __str__(self) -> str:
        show = show_seconds if self.measure == "latency" else show_bandwidth
        what = f"{self.way} at" if self.way else self.measure
        if self.measure == "bandwidth" and len(self.ranks) == 2:
            what = f"bandwidth from {self.ranks[0]} to {self.ranks[1]}"
        return f"{what} {show(self.value)} against {show(self.typical)} ({self.factor:.1f} times)"


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
        return f"{self.title} is slow {kind}: {'; '.join(map(str, self.slow))}"


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
    """Return the worst reading of each kind, latency first; it is the same both ways."""
    worst: dict[tuple[bool, str, tuple[int, ...]], Suspect] = {}
    for one in sorted(found, key=lambda one: one.factor):
        is_bandwidth = one.measure == "bandwidth"
        link = one.ranks if is_bandwidth and len(one.ranks) == 2 else ()
        worst[is_bandwidth, one.way if is_bandwidth else "", link] = one
    return tuple(_reading(one) for _, one in sorted(worst.items()))


def _reading(one: Suspect) -> Slow:
    if one.measure == "latency":
        ranks = tuple(sorted(one.ranks))
        return Slow(one.measure, ranks, "", one.cost, one.typical, one.factor)
    return Slow(one.measure, one.ranks, one.way, 1 / one.cost, 1 / one.typical, one.factor)

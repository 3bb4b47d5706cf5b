"""Made-up measurements: every link as fast as the next, but for those that a test slows down."""

import random
from collections.abc import Mapping, Sequence

from rank_probe.collectives.measure import CollectiveTime, MeasuredLinks, rounds
from rank_probe.collectives.verdict import PairTime, Ranks, findings, scope_of, slow_readings

LATENCY_SECONDS = 20e-6
BANDWIDTH = 10e9
# By how much links, from sender to receiver, are slower.
Slower = Mapping[Ranks, float]


def hosts(nodes: int, ranks_of_each: int) -> tuple[str, ...]:
    """Return the host of each rank: n0, n1 and so on."""
    return tuple(f"n{node}" for node in range(nodes) for _ in range(ranks_of_each))


def pair_times(
    hosts: Sequence[str],
    slower: Slower | None = None,
    latency: Slower | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> list[PairTime]:
    """Return the time of each measured pair.

    *slower* divides the bandwidth of links, *latency* multiplies the latency of pairs. Nodes are 10
    times further apart than ranks of one. *noise* is the standard deviation of logarithms.
    """
    chance = random.Random(seed)

    def noisy(value: float) -> float:
        return value * chance.lognormvariate(0.0, noise)

    found = []
    for pair in (pair for pairs in rounds(len(hosts)) for pair in pairs):
        far = 10.0 if scope_of(pair, hosts) == "inter-node" else 1.0
        there, back = (
            noisy(BANDWIDTH / far / (slower or {}).get(link, 1.0)) for link in (pair, pair[::-1])
        )
        seconds = noisy(LATENCY_SECONDS * far * (latency or {}).get(pair, 1.0))
        found.append(PairTime(pair, seconds, there, back))
    return found


def result(pairs: Sequence[PairTime], hosts: Sequence[str]) -> MeasuredLinks:
    """Return a result with *pairs*, judged, and two collectives."""
    collectives = (
        CollectiveTime("all_reduce", 4096, 1e-3),
        CollectiveTime("all_gather", 4096, 0.5e-3),
    )
    slow = findings(slow_readings(pairs, hosts), hosts)
    return MeasuredLinks("gloo", tuple(hosts), 2**20, collectives, pairs, 0, slow)

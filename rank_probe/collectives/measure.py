"""Measures everything, again what may be slow, and says what stands out.

In the first pass the pairs of a round run at once, and share what they share. Before something is
named as slow, it is measured again, alone on the machine: one pair runs at a time, doubtful and
other pairs in turn, three times. The fastest of its times counts for each: a slow link is slow
every time, while a pair that was held up is fast once. Only these times are judged. Where they
show something slow, two more such passes must show it too.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rank_probe.collectives.pairs import Pair, PairTime, Round, rounds, time_rounds
from rank_probe.collectives.timing import (
    COLLECTIVES,
    CollectiveTime,
    sizes_up_to,
    time_collectives,
)
from rank_probe.collectives.verdict import (
    Measure,
    Named,
    Suspect,
    doubtful,
    named,
    scope_of,
    suspects,
)
from rank_probe.collectives.world import World

# Beyond this, host memory and loopback are measured for minutes, and nothing new is learned.
LARGEST_BYTES: Final = {"nccl": 256 * 2**20, "gloo": 16 * 2**20}
PAIR_BYTES: Final = {"nccl": 64 * 2**20, "gloo": 4 * 2**20}
TIMES: Final = 3
PASSES: Final = 3
# Up to here all pairs are measured again: those of eight ranks.
MOST_IN_FULL: Final = 28
MOST_DOUBTFUL: Final = 24
# Of each rank that has a doubtful pair, so that it is known how fast it can be.
CONTROLS_OF_A_RANK: Final = 2


def to_repeat(times: Sequence[PairTime], hosts: Sequence[str]) -> list[Pair]:
    """Return the doubtful pairs, and others to compare them with; nothing if there is no doubt."""
    doubts = doubtful(times, hosts)
    every_pair = [one.pair for one in times]
    if not doubts or len(every_pair) <= MOST_IN_FULL:
        return every_pair if doubts else []
    others = sorted(
        (one for one in times if one.pair not in set(doubts)),
        key=lambda one: one.latency_seconds,
    )
    found = dict.fromkeys(doubts[:MOST_DOUBTFUL])
    for pair in list(found):
        for rank in pair:
            like = [
                one.pair
                for one in others
                if rank in one.pair and scope_of(one.pair, hosts) == scope_of(pair, hosts)
            ]
            found |= dict.fromkeys(like[:CONTROLS_OF_A_RANK])
    return list(found)


def alone(pairs: Sequence[Pair]) -> list[Round]:
    """Return rounds in which each of *pairs* runs alone, all in turn, several times."""
    return [(pair,) for _ in range(TIMES) for pair in pairs]


def noise(readings: Sequence[PairTime]) -> dict[Measure, float]:
    """Return by which factor a reading is slower than the best of its pair, for most pairs.

    It is that of the median reading, and of the median pair: few pairs are slow now and then.
    """
    best = {one.pair: one for one in fastest(readings)}
    by_pair: dict[Pair, list[PairTime]] = {}
    for one in readings:
        by_pair.setdefault(one.pair, []).append(one)
    latency, bandwidth = [], []
    for pair, own in by_pair.items():
        usual = statistics.median(one.latency_seconds for one in own)
        latency.append(usual / best[pair].latency_seconds)
        bandwidth.append(best[pair].there / statistics.median(one.there for one in own))
        bandwidth.append(best[pair].back / statistics.median(one.back for one in own))
    return {"latency": statistics.median(latency), "bandwidth": statistics.median(bandwidth)}


def fastest(times: Iterable[PairTime]) -> list[PairTime]:
    """Return one time for each pair: the best of each of its readings."""
    found: dict[Pair, PairTime] = {}
    for one in times:
        best = found.get(one.pair, one)
        found[one.pair] = PairTime(
            *one.pair,
            min(one.latency_seconds, best.latency_seconds),
            max(one.there, best.there),
            max(one.back, best.back),
            min(one.message_bytes, best.message_bytes),
        )
    return list(found.values())


class Plan(NamedTuple):
    """Sizes of the collectives and messages in bytes, rounds of pairs, and the time for each."""

    sizes_bytes: tuple[int, ...]
    collective_seconds: float
    pair_bytes: int
    rounds: tuple[Round, ...]
    rounds_seconds: float

    def seconds_of_each(self, rounds: int) -> float:
        """Return how long each of *rounds* may take; what is repeated gets as long in all."""
        return self.rounds_seconds / max(rounds, len(self.rounds))


def plan(
    backend: str,
    ranks: int,
    seconds: float,
    max_bytes: int | None = None,
    pair_bytes: int | None = None,
) -> Plan:
    """Return the plan for *ranks* ranks: half of the time for collectives, half for pairs."""
    sizes = tuple(sizes_up_to(max_bytes or LARGEST_BYTES[backend], ranks))
    return Plan(
        sizes_bytes=sizes,
        collective_seconds=seconds / 2 / (len(sizes) * len(COLLECTIVES)),
        pair_bytes=pair_bytes or PAIR_BYTES[backend],
        rounds=tuple(rounds(ranks)),
        rounds_seconds=seconds / 2,
    )


class MeasuredLinks(NamedTuple):
    """All that was measured; *named* is empty if nothing stands out.

    *again* has the pairs that were measured a second time, alone, because some might be slow.
    """

    backend: str
    hosts: tuple[str, ...]
    collectives: Sequence[CollectiveTime]
    pairs: Sequence[PairTime]
    again: Sequence[PairTime]
    named: Sequence[Named]
    notes: Sequence[str]

    @property
    def best(self) -> list[PairTime]:
        """One time for each pair, by its ranks: from the second pass, as far as there is one."""
        found = {one.pair: one for one in (*self.pairs, *self.again)}
        return [one for _, one in sorted(found.items())]


def measure(world: World, plan: Plan, notes: Sequence[str] = ()) -> MeasuredLinks | None:
    """Return the result on rank 0; None on the others."""
    collectives = time_collectives(world, plan.sizes_bytes, plan.collective_seconds)
    each = plan.seconds_of_each(len(plan.rounds))
    pairs = time_rounds(world, plan.rounds, plan.pair_bytes, each)
    again, found = _again(world, plan, pairs)
    if pairs is None:
        return None
    slow = named(found, world.hosts)
    return MeasuredLinks(world.backend, world.hosts, collectives, pairs, again, slow, notes)


def _again(
    world: World, plan: Plan, pairs: Sequence[PairTime] | None
) -> tuple[list[PairTime], list[Suspect]]:
    """Return the second times of the doubtful pairs, and what they show, on rank 0."""
    doubts = world.announce(to_repeat(pairs, world.hosts) if pairs else [])
    turns = alone([(first, second) for first, second in doubts])
    readings: list[PairTime] = []
    found: list[Suspect] = []
    for _ in range(PASSES if turns else 0):
        each = plan.seconds_of_each(len(turns)) / 2
        readings += time_rounds(world, turns, plan.pair_bytes, each) or []
        if readings:
            found = suspects(fastest(readings), world.hosts, noise(readings))
        if not world.announce(bool(found)):
            break
    return fastest(readings), found

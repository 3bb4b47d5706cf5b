"""Measures again what stands out, alone on the machine, before it is named.

In the first pass the pairs of a round run at once, and share what they share. Here one pair runs at
a time, suspected and other pairs in turn, three times. The fastest of its times counts for each:
a slow link is slow every time, while a pair that was held up is fast once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from rank_probe.collectives.pairwise import PairTime, gathered, time_rounds
from rank_probe.collectives.rounds import Pair, Round
from rank_probe.collectives.verdict import FACTORS, Suspect, costs, scope_of, yardstick
from rank_probe.collectives.world import World

TIMES: Final = 3
MOST_SUSPECTED: Final = 24
MOST_CONTROLS: Final = 12


def to_repeat(
    found: Sequence[Suspect], times: Sequence[PairTime], hosts: Sequence[str]
) -> list[Round]:
    """Return the rounds that repeat the suspected pairs, and others to compare them with."""
    suspected = _pairs(sorted(found, key=lambda one: -one.factor))
    scopes = {one.scope for one in found}
    others = [
        (one.first, one.second)
        for one in times
        if (one.first, one.second) not in suspected
        and scope_of((one.first, one.second), hosts) in scopes
    ]
    step = max(len(others) // MOST_CONTROLS, 1)
    alone = [*list(suspected)[:MOST_SUSPECTED], *others[::step][:MOST_CONTROLS]]
    return [(pair,) for _ in range(TIMES) for pair in alone]


def repeat(
    world: World, rounds: Sequence[Round], message_bytes: int, pair_seconds: float
) -> list[PairTime] | None:
    """Return the fastest time of each pair on rank 0; None on the others."""
    again = gathered(world, time_rounds(world, rounds, message_bytes, pair_seconds))
    return None if again is None else fastest(again)


def fastest(times: Iterable[PairTime]) -> list[PairTime]:
    """Return one time for each pair: the best of each of its readings."""
    found: dict[Pair, PairTime] = {}
    for one in times:
        pair = (one.first, one.second)
        best = found.get(pair, one)
        found[pair] = PairTime(
            *pair,
            min(one.latency_seconds, best.latency_seconds),
            max(one.there, best.there),
            max(one.back, best.back),
            min(one.message_bytes, best.message_bytes),
        )
    return list(found.values())


def confirmed(
    found: Sequence[Suspect], again: Sequence[PairTime], hosts: Sequence[str]
) -> list[Suspect]:
    """Return the suspects that still stand out from the pairs that nobody suspects."""
    suspected = _pairs(found)
    kept = []
    for one in found:
        now = costs(again, one.measure)
        controls = [
            cost
            for link, cost in now.items()
            if tuple(sorted(link)) not in suspected and scope_of(link, hosts) == one.scope
        ]
        own = [now[link] for link in one.links if link in now]
        if not own or not controls:
            continue
        typical, limit = yardstick(controls, FACTORS[one.measure])
        if min(own) > limit:
            kept.append(
                Suspect(one.measure, one.scope, one.ranks, one.way, min(own), typical, one.links)
            )
    return kept


def _pairs(found: Iterable[Suspect]) -> dict[Pair, None]:
    """Return the pairs of *found*, in order, each once."""
    links = (link for one in found for link in one.links)
    return dict.fromkeys((min(link), max(link)) for link in links)

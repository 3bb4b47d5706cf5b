"""Measures again what may be slow, alone on the machine, before it is named.

In the first pass the pairs of a round run at once, and share what they share. Here one pair runs at
a time, doubtful and other pairs in turn, three times. The fastest of its times counts for each: a
slow link is slow every time, while a pair that was held up is fast once. Only these times are
judged. Where they show something slow, two more such passes must show it too.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from rank_probe.collectives.measurements.pairwise import PairTime
from rank_probe.collectives.measurements.rounds import Pair, Round
from rank_probe.collectives.verdict import Measure, doubtful, scope_of

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
    every_pair = [(one.first, one.second) for one in times]
    if not doubts or len(every_pair) <= MOST_IN_FULL:
        return every_pair if doubts else []
    others = sorted(
        (one for one in times if (one.first, one.second) not in set(doubts)),
        key=lambda one: one.latency_seconds,
    )
    found = dict.fromkeys(doubts[:MOST_DOUBTFUL])
    for pair in list(found):
        for rank in pair:
            like = [
                (one.first, one.second)
                for one in others
                if rank in (one.first, one.second)
                and scope_of((one.first, one.second), hosts) == scope_of(pair, hosts)
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
    best = {(one.first, one.second): one for one in fastest(readings)}
    by_pair: dict[Pair, list[PairTime]] = {}
    for one in readings:
        by_pair.setdefault((one.first, one.second), []).append(one)
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

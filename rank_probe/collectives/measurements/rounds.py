"""Which pairs of ranks are measured, and which of them at the same time."""

from collections.abc import Iterable
from typing import Final

# The lower rank first.
Pair = tuple[int, int]
Round = tuple[Pair, ...]

# Up to here every pair is measured: 31 rounds.
MOST_RANKS_IN_FULL: Final = 32


def rounds(ranks: int) -> list[Round]:
    """Return rounds of disjoint pairs: all pairs of a small world, at most n*log2(n) of a large."""
    if ranks <= MOST_RANKS_IN_FULL:
        return tournament(ranks)
    return disjoint(sampled(ranks))


def pairs_of(ranks: int) -> int:
    """Return how many pairs *ranks* have."""
    return ranks * (ranks - 1) // 2


def tournament(ranks: int) -> list[Round]:
    """Return each pair once, in as few rounds as a round-robin tournament has (circle method)."""
    players = [*range(ranks), *([-1] if ranks % 2 else [])]  # Who meets -1 has a round off.
    found: list[Round] = []
    for _ in range(len(players) - 1):
        meet = zip(players[: len(players) // 2], reversed(players), strict=False)
        found.append(tuple(_pair(a, b) for a, b in meet if -1 not in (a, b)))
        players.insert(1, players.pop())
    return [each for each in found if each]


def sampled(ranks: int) -> list[Pair]:
    """Return the pairs at distances 1, 2, 4 and so on, around the ring of all ranks.

    Each rank has about 2*log2(n) partners near and far, so a slow rank or node shows in many pairs.
    A single slow link shows only if it is among these pairs.
    """
    distances, distance = [], 1
    while distance <= ranks // 2:
        distances.append(distance)
        distance *= 2
    found = {_pair(rank, (rank + far) % ranks) for far in distances for rank in range(ranks)}
    return sorted(found, key=lambda pair: (pair[1] - pair[0], pair))


def disjoint(pairs: Iterable[Pair]) -> list[Round]:
    """Put each pair into the first round in which neither of its ranks is busy."""
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        for here, ranks in zip(found, busy, strict=True):
            if ranks.isdisjoint(pair):
                here.append(pair)
                ranks.update(pair)
                break
        else:
            found.append([pair])
            busy.append(set(pair))
    return [tuple(each) for each in found]


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)

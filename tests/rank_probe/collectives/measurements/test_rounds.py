"""Pairs that are measured at once have no rank in common."""

import math
from itertools import combinations

import pytest

from rank_probe.collectives.measurements.rounds import MOST_RANKS_IN_FULL, rounds


@pytest.mark.parametrize("ranks", [*range(2, 10), MOST_RANKS_IN_FULL])
def test_small_world_meets_in_full(ranks: int) -> None:
    """Every pair is measured once, in as few rounds as can be."""
    found = rounds(ranks)

    assert sorted(pair for each in found for pair in each) == list(combinations(range(ranks), 2))
    assert len(found) == (ranks - 1 if ranks % 2 == 0 else ranks)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)


@pytest.mark.parametrize("ranks", [33, 64, 100, 1024])
def test_large_world_is_sampled(ranks: int) -> None:
    """No more than n*log2(n) pairs; each rank has partners near and far, and no clash."""
    found = rounds(ranks)
    pairs = [pair for each in found for pair in each]

    assert len(pairs) == len(set(pairs)) <= ranks * math.log2(ranks)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)
    partners = {rank: sum(rank in pair for pair in pairs) for rank in (0, ranks // 2, ranks - 1)}
    assert min(partners.values()) >= 2 * int(math.log2(ranks)) - 1

"""What is measured, how often, what bandwidth that is, and what is measured again."""

import time
from itertools import combinations

import pytest

from rank_probe.collectives.measure import (
    FEWEST,
    MOST,
    CollectiveTime,
    fastest,
    noise,
    repetitions_in,
    rounds,
    sizes_up_to,
    timed,
    to_repeat,
)
from rank_probe.collectives.verdict import PairTime
from tests.rank_probe.collectives.worlds import Slower, hosts, pair_times


@pytest.mark.parametrize(
    ("largest", "ranks", "sizes"),
    [
        (2**20, 4, [2**12, 2**14, 2**16, 2**18, 2**20]),
        (4096, 3, [3 * 1360]),
        (100, 2, [96]),
        (8, 4, [64]),
    ],
)
def test_sizes_grow_by_the_factor(largest: int, ranks: int, sizes: list[int]) -> None:
    """A rank's share is rounded down to 16 bytes, as nccl-tests does, and is never empty."""
    assert sizes_up_to(largest, ranks) == sizes


@pytest.mark.parametrize("ranks", [*range(2, 10), 64])
def test_every_pair_meets(ranks: int) -> None:
    """Every pair is measured once, in as few rounds as can be."""
    found = rounds(ranks)

    assert sorted(pair for each in found for pair in each) == list(combinations(range(ranks), 2))
    assert len(found) == (ranks - 1 if ranks % 2 == 0 else ranks)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)


def test_each_repetition_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the one before, so nothing between them is lost."""
    now = 0.0
    takes = iter((1.0, 4.0, 2.0))
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def operation() -> None:
        nonlocal now
        now += next(takes)

    assert timed(operation, 3, on_gpu=False) == [1.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("seconds", "once", "expected"),
    [(1.0, 0.01, 100), (1.0, 10.0, FEWEST), (10.0, 1e-6, MOST), (1.0, 0.0, MOST)],
)
def test_repetitions_fill_the_time(seconds: float, once: float, expected: int) -> None:
    """Few of what is slow, but enough for a median."""
    assert repetitions_in(seconds, once) == expected


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_reduce", 1.75e9), ("all_gather", 0.875e9), ("reduce_scatter", 0.875e9)],
)
def test_bus_bandwidth_of_eight_ranks(collective: str, expected: float) -> None:
    """1 GB in a second: 2*7/8 for an all-reduce, 7/8 for the other two."""
    assert CollectiveTime(collective, 10**9, 1.0).bus_bandwidth(8) == pytest.approx(expected)


@pytest.mark.parametrize(("slow", "pairs"), [({}, 0), ({(0, 5): 3.0}, 28)])
def test_small_world_is_repeated_in_full_or_not_at_all(slow: Slower, pairs: int) -> None:
    """A healthy world is measured once; the pairs of up to eight ranks are few enough."""
    assert len(to_repeat(pair_times(hosts(1, 8), slow), hosts(1, 8))) == pairs


def test_large_world_repeats_the_slow_and_some_of_their_ranks_others() -> None:
    """Each rank of a doubtful pair has other pairs, or a slow partner would look slow too."""
    where = hosts(1, 64)
    pairs = to_repeat(pair_times(where, {(9, other): 3.0 for other in range(64)}), where)
    doubts = {pair for pair in pairs if 9 in pair}
    partners = {rank for pair in doubts for rank in pair} - {9}

    assert len(doubts) >= 6
    assert len(pairs) < 100
    assert all(any(rank in pair for pair in set(pairs) - doubts) for rank in partners)


def test_fastest_of_each_reading_counts() -> None:
    """One time for each pair, whichever reading each part is from."""
    first = PairTime((0, 1), 2e-5, 10.0, 30.0)
    second = PairTime((0, 1), 1e-5, 20.0, 25.0)

    assert fastest([first, second]) == [PairTime((0, 1), 1e-5, 20.0, 30.0)]


def test_noise_is_the_usual_reading_over_the_best() -> None:
    """Of the median pair: one that is slow now and then does not hide what is slow always."""
    steady = [PairTime((0, 1), 1e-5, 10.0, 10.0)] * 3
    shaky = [PairTime((0, 2), seconds, 10.0, 10.0) for seconds in (1e-5, 9e-5, 8e-5)]
    double = [PairTime((1, 2), seconds, 10.0, 5.0) for seconds in (1e-5, 2e-5, 2e-5)]

    assert noise([*steady, *shaky, *double]) == {"latency": 2.0, "bandwidth": 1.0}

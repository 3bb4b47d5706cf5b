"""What is measured, in which rounds, and how often: it follows from options, backend and ranks."""

import math
import time
from itertools import combinations

import pytest

from rank_probe.collectives.measure import plan
from rank_probe.collectives.pairs import MOST_RANKS_IN_FULL, PROBE_BYTES, fitting, one_way, rounds
from rank_probe.collectives.timing import FEWEST, MOST, repetitions_in, sizes_up_to, timed


def test_sizes_grow_by_the_factor() -> None:
    """From 4 KiB up to the largest, rounded so that the ranks share them equally."""
    assert sizes_up_to(2**20, 4) == [2**12, 2**14, 2**16, 2**18, 2**20]
    assert sizes_up_to(100, 2) == [96]


def test_backend_has_its_largest_sizes() -> None:
    """Host memory need not be measured for minutes."""
    assert plan("nccl", 8, 30.0).sizes_bytes[-1] == 256 * 2**20
    assert plan("gloo", 8, 30.0).sizes_bytes[-1] == 16 * 2**20


def test_time_is_shared_between_collectives_and_pairs() -> None:
    """Half for each, and what is repeated gets no longer than the first pass in all."""
    found = plan("gloo", 4, 12.0, max_bytes=4096)

    assert found.collective_seconds == pytest.approx(2.0)
    assert found.seconds_of_each(3) == pytest.approx(2.0)
    assert found.seconds_of_each(18) == pytest.approx(6.0 / 18)
    assert found.seconds_of_each(1) == pytest.approx(2.0)


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


def test_slow_link_gets_a_smaller_message() -> None:
    """A link of 1 MB/s would take four seconds for the message of the others."""
    assert fitting(2**22, PROBE_BYTES / 1e9, 1.0) == 2**22
    assert fitting(2**22, PROBE_BYTES / 1e6, 1.0) == 2**17
    assert fitting(2**22, PROBE_BYTES / 1e3, 1.0) == PROBE_BYTES


def test_small_answer_is_not_part_of_the_large_message() -> None:
    """Its latency is taken off, but never more than half of the time."""
    assert one_way(1.0, 0.25) == 0.75
    assert one_way(1.0, 3.0) == 0.5

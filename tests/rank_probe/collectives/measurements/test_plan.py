"""What is measured, in which rounds, and how often: it follows from options, backend and ranks."""

import math
from itertools import combinations

import pytest

from rank_probe.collectives.measurements.pairwise import PROBE_BYTES, fitting, one_way
from rank_probe.collectives.measurements.plan import MeasurementOptions, plan, sizes_up_to
from rank_probe.collectives.measurements.rounds import MOST_RANKS_IN_FULL, rounds
from rank_probe.collectives.measurements.timing import FEWEST, MOST, repetitions_in, timed


def test_sizes_grow_by_the_factor() -> None:
    """From 4 KiB up to the largest, rounded so that the ranks share them equally."""
    assert sizes_up_to(2**20, 4) == [2**12, 2**14, 2**16, 2**18, 2**20]
    assert sizes_up_to(100, 2) == [96]


def test_backend_has_its_largest_sizes() -> None:
    """Host memory need not be measured for minutes."""
    assert plan(MeasurementOptions(), "nccl", 8).sizes_bytes[-1] == 256 * 2**20
    assert plan(MeasurementOptions(), "gloo", 8).sizes_bytes[-1] == 16 * 2**20


def test_time_is_shared_between_collectives_and_pairs() -> None:
    """Half for each, and what is repeated gets no longer than the first pass in all."""
    found = plan(MeasurementOptions(seconds=12.0, max_bytes=4096), "gloo", 4)

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


class Counter:
    """A clock that goes on by as much as the operations say."""

    def __init__(self) -> None:
        self.now = 0.0
        self.marks: list[float] = []

    def mark(self) -> None:
        self.marks.append(self.now)

    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]


def test_each_repetition_has_its_time() -> None:
    """From the end of the one before, so nothing between them is lost."""
    clock = Counter()
    takes = iter((1.0, 4.0, 2.0))

    def operation() -> None:
        clock.now += next(takes)

    assert timed(operation, clock, 3) == [1.0, 4.0, 2.0]


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

"""Repetitions have a time each, and fit the time that there is."""

import pytest

from rank_probe.collectives.measurements.pairwise import PROBE_BYTES, fitting, one_way
from rank_probe.collectives.measurements.timing import FEWEST, MOST, repetitions_in, timed


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

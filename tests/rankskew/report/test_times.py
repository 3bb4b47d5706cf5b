"""Periods are joined, cut and added up; times and amounts are as people read them."""

from rankskew.times import merged, of_points, seconds, within
from rankskew.wording import gpu_hours, money


def test_spans_that_overlap_or_meet_are_one() -> None:
    """In any order; a gap that is too long keeps two apart."""
    assert merged([(10, 20), (0, 5), (5, 8), (15, 30)]) == [(0, 8), (10, 30)]
    assert merged([(0, 5), (8, 9), (20, 21)], gap_seconds=3) == [(0, 9), (20, 21)]


def test_spans_are_cut_and_added_up() -> None:
    """From the middle, from the ends, and all of it; a point stands for its step."""
    assert within([(0, 10), (20, 30)], 5, 25) == [(5, 10), (20, 25)]
    assert of_points([0, 15, 30, 90], 15) == [(0, 45), (90, 105)]
    assert seconds(of_points([0, 15, 30, 90], 15)) == 60


def test_amounts() -> None:
    """What is not known is not 0, and what is little is not nothing."""
    assert [gpu_hours(h) for h in (None, 0, 0.001, 1.234, 1234.5)] == [
        *("–", "0.00", "<0.01", "1.23"),
        "1,234",
    ]
    assert [money(m) for m in (None, 0, 0.001, 1.5, 12345)] == [
        *("–", "$0.00", "<$0.01", "$1.50"),
        "$12,345",
    ]

"""Spans of time are joined, cut and added up."""

from exporter.report.spans import merged, of_points, seconds, within, without


def test_spans_that_overlap_or_meet_are_one() -> None:
    """In any order; a gap that is too long keeps two apart."""
    assert merged([(10, 20), (0, 5), (5, 8), (15, 30)]) == [(0, 8), (10, 30)]
    assert merged([(0, 5), (8, 9), (20, 21)], gap_seconds=3) == [(0, 9), (20, 21)]


def test_what_is_taken_away_is_gone() -> None:
    """From the middle, from the ends, and all of it."""
    assert without([(0, 10), (20, 30)], [(4, 6), (8, 25)]) == [(0, 4), (6, 8), (25, 30)]
    assert without([(0, 10)], [(0, 10)]) == []
    assert without([(0, 10)], [(10, 20)]) == [(0, 10)]


def test_points_stand_for_their_step() -> None:
    """A series read every 15 s that has three values lasted 45 s."""
    assert of_points([0, 15, 30, 90], 15) == [(0, 45), (90, 105)]
    assert seconds(of_points([0, 15, 30, 90], 15)) == 60


def test_a_period_cuts_spans() -> None:
    """Only what is inside remains."""
    assert within([(0, 10), (20, 30)], 5, 25) == [(5, 10), (20, 25)]

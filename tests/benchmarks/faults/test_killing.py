"""Tests of how the pauses of a run are judged."""

import pytest

from benchmarks.faults.killing import unexplained


@pytest.mark.parametrize(
    ("ours", "empty", "expected"), [(0, 0, 0), (6, 0, 0), (7, 0, 1), (20, 10, 0), (30, 10, 6)]
)
def test_pauses_are_ours_when_an_empty_loop_has_far_fewer(
    ours: int, empty: int, expected: int
) -> None:
    """Six heads in a row are chance, at one in a hundred; seven are not."""
    assert unexplained(ours, empty) == expected

"""Simulated jobs of which many ranks become slower are told exactly, and only then."""

from dataclasses import replace

from benchmarks.accuracy.changes import outcome, some

HALF = replace(some("half", 8, range(4)), after=120.0)


def test_set_is_told_in_time_and_nothing_else() -> None:
    """Half of the ranks, 30 % late after two minutes."""
    found = outcome(HALF, 1)

    assert found.seconds is not None
    assert 0 < found.seconds < HALF.due
    assert found.wrong == 0


def test_too_small_a_delay_is_never_told() -> None:
    """The truth counts as told only if it was said."""
    assert outcome(replace(HALF, more=0.001), 1).seconds is None

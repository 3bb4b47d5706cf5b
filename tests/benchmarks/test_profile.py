"""What the benchmark of a profile compares, and that it sees a slow step."""

import pytest

from benchmarks.profile import AFTER, COMPARED, STEPS, rounds_of, rows_of, waiting_microseconds

START = 6 * COMPARED + 1


def run(waiting: float = 1.0, after: float = 1.0) -> list[float]:
    """Return steps of 10 ms before the order; the profiled ones take 30 ms, the next 20 ms."""
    quiet, last = [10.0] * (START - 1 - COMPARED), [10.0 * after] * COMPARED
    return [*quiet, *[10.0 * waiting] * COMPARED, *[30.0] * STEPS, *[20.0] * AFTER, *last]


def test_parts_of_a_round_are_told_apart() -> None:
    rounds = rounds_of(run(1.1, 1.2), [START])

    assert rounds == [[10.0, pytest.approx(11.0), 12.0, 20.0 * STEPS, 10.0 * AFTER]]


def test_slow_steps_beside_a_profile_are_seen() -> None:
    """By the clock, and by their CPU."""
    took = [list(each) for each in zip(run(1.03, 1.0), run(1.0, 1.02), strict=True)]
    found = {each["what"]: each["measured"] for each in rows_of(took, [START])}
    more = [
        found[f"{what} of steps {when}, more by %"]
        for what in ("time", "CPU")
        for when in ("before the profile", "after it")
    ]

    assert more == pytest.approx([3.0, 0.0, 0.0, 2.0])


def test_waiting_costs_a_step_something() -> None:
    """The events are really followed in one of the two loops."""
    assert 0.5 < waiting_microseconds() < 1_000

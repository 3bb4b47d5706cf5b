"""What the benchmark of a profile compares, and that it sees a slow step."""

import pytest

from benchmarks.profile import AFTER, COMPARED, STEPS, rounds_of, rows_of
from benchmarks.report import broken

START = 6 * COMPARED + 1


def run(waiting: float = 1.0, after: float = 1.0) -> list[float]:
    """Return steps of 10 ms before the order; the profiled ones take 30 ms, the next 20 ms."""
    quiet, last = [10.0] * (START - 1 - COMPARED), [10.0 * after] * COMPARED
    return [*quiet, *[10.0 * waiting] * COMPARED, *[30.0] * STEPS, *[20.0] * AFTER, *last]


def test_parts_of_a_round_are_told_apart() -> None:
    rounds = rounds_of(run(1.1, 1.2), [START])

    assert rounds == [[10.0, pytest.approx(11.0), 12.0, 20.0 * STEPS, 10.0 * AFTER]]


@pytest.mark.parametrize(
    ("waiting", "after", "too_slow"),
    [(1.0, 1.005, []), (1.02, 1.0, ["before the profile"]), (1.0, 1.02, ["after it"])],
)
def test_slow_step_beside_a_profile_is_seen(
    waiting: float, after: float, too_slow: list[str]
) -> None:
    """By its CPU; what the clock says is noise of the machine."""
    took = [[99.0, each] for each in run(waiting, after)]
    found = [each["what"] for each in broken(rows_of(took, [START]))]

    assert found == [f"CPU of steps {when}, more by %" for when in too_slow]

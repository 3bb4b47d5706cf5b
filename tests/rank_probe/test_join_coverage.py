"""How many of the offered steps were joined, of those whose turn has come."""

import pytest

from rank_probe.join_coverage import LATE_ROUNDS, WINDOW_SECONDS, Coverage

PERIOD = 2.0


def test_nothing_is_known_before_a_step_could_be_joined() -> None:
    """A step that is on its way is neither joined nor lost."""
    coverage = Coverage(PERIOD)
    coverage.offer(range(1, 11), 100.0)
    coverage.joined(0, 0, 100.0 + LATE_ROUNDS * PERIOD)

    assert coverage.ratio is None


def test_steps_that_come_too_late_are_lost() -> None:
    """Without a peer's probe no step is joined, and a few rounds later the share is 0."""
    coverage = Coverage(PERIOD)
    coverage.offer(range(1, 11), 100.0)
    coverage.joined(0, 0, 100.1 + LATE_ROUNDS * PERIOD)

    assert coverage.ratio == 0


def test_share_is_that_of_the_last_minute() -> None:
    """What was lost longer ago is forgotten, and what is lost now shows."""
    coverage = Coverage(PERIOD)
    joined, ratios = 0, []
    for number in range(120):
        now = 100.0 + number * PERIOD
        coverage.offer(range(10 * number, 10 * number + 10), now)
        joined += 10 if 30 <= number < 90 else 5
        coverage.joined(joined, 10 * number + 9, now)
        ratios.append(coverage.ratio)
    minute = int(WINDOW_SECONDS / PERIOD)

    assert ratios[29] == pytest.approx(0.5)
    assert ratios[30 + minute] == 1.0
    assert ratios[90 + minute // 2] == pytest.approx(0.75, abs=0.02)
    assert ratios[119] == pytest.approx(0.5, abs=0.02)


def test_share_stands_while_no_step_ends() -> None:
    """A hang, or steps longer than a minute, is no loss of coverage."""
    coverage = Coverage(PERIOD)
    coverage.offer(range(10), 100.0)
    coverage.joined(8, 9, 102.0)
    coverage.joined(8, 9, 1_000.0)
    assert coverage.ratio == pytest.approx(0.8)

    coverage.offer([10], 1_000.0)
    coverage.joined(9, 10, 1_002.0)
    assert coverage.ratio == 1.0

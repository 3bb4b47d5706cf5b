"""How many of the offered steps were joined, of those whose turn has come."""

import pytest

from rank_probe.join.coverage import ALWAYS_PENDING, LATE_ROUNDS, WINDOW_SECONDS, JoinCoverage
from rank_probe.join.ring import Pace, is_sampled

PERIOD = 2.0


def test_step_that_comes_too_late_is_lost_and_not_before() -> None:
    """Without a peer's probe the share is 0 after a few rounds; until then nothing is known."""
    coverage = JoinCoverage(Pace(PERIOD))
    coverage.offer(range(1, 2 + ALWAYS_PENDING), 100.0)
    coverage.joined(0, 0, 100.0 + LATE_ROUNDS * PERIOD)
    assert coverage.ratio is None
    coverage.joined(0, 0, 100.1 + LATE_ROUNDS * PERIOD)
    assert coverage.ratio == 0


def test_step_is_not_lost_while_rounds_are_slow() -> None:
    """Where a round takes three periods, a step has as many times longer."""
    pace = Pace(PERIOD)
    for number in range(3):
        pace.begin_round(number * 3 * PERIOD)
    coverage = JoinCoverage(pace)
    coverage.offer(range(1, 2 + ALWAYS_PENDING), 100.0)
    coverage.joined(0, 0, 100.0 + 3 * LATE_ROUNDS * PERIOD)
    assert coverage.ratio is None
    coverage.joined(0, 0, 100.1 + 3 * LATE_ROUNDS * PERIOD)
    assert coverage.ratio == 0


def test_step_that_one_rank_has_not_seen_the_end_of_is_not_lost() -> None:
    """While one rank writes a checkpoint of 30 s, its peers' last step is on its way."""
    coverage = JoinCoverage(Pace(PERIOD))
    ratios = []
    ends = {step: 10.0 * step + (20.0 if step >= 6 else 0.0) for step in range(1, 12)}
    for number in range(75):
        now = number * PERIOD
        # The checkpoint follows step 5, whose end the rank that writes it sees only after it.
        joined = [step for step, end in ends.items() if end + (20.0 if step == 5 else 0.0) <= now]
        coverage.offer([step for step, end in ends.items() if now - PERIOD < end <= now], now)
        coverage.joined(len(joined), max(joined, default=0), now)
        ratios.append(coverage.ratio)

    assert ratios[-1] == 1.0
    assert set(ratios) == {None, 1.0}


def test_share_is_that_of_the_last_minute() -> None:
    """What was lost longer ago is forgotten, and what is lost now shows."""
    coverage = JoinCoverage(Pace(PERIOD))
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
    coverage = JoinCoverage(Pace(PERIOD))
    coverage.offer(range(10), 100.0)
    coverage.joined(8, 9, 102.0)
    coverage.joined(8, 9, 1_000.0)
    assert coverage.ratio == pytest.approx(0.8)

    coverage.offer([10], 1_000.0)
    coverage.joined(9, 10, 1_002.0)
    assert coverage.ratio == 1.0


def test_step_that_is_no_longer_sampled_is_not_missed() -> None:
    """When rank 0 takes a sparser sample, what a rank has offered beside it is let go."""
    coverage = JoinCoverage(Pace(PERIOD))
    coverage.offer(range(1, 101), 100.0)
    sampled = [step for step in range(1, 101) if is_sampled(step, 4)]
    coverage.sample(4)
    coverage.joined(len(sampled), 100, 102.0)

    assert len(sampled) < 50
    assert coverage.ratio == 1.0

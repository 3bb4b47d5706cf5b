"""What a rank offers, and how many of the steps whose turn has come were joined."""

from itertools import pairwise

import pytest

from rank_probe.join.ring import (
    FEW_STEPS_A_ROUND,
    LAST_STEPS,
    LONGEST_ROUND,
    RING,
    ROUNDS,
    ROUNDS_REMEMBERED,
    STEPS_A_ROUND,
    Pace,
    StepRing,
    is_sampled,
)
from rank_probe.join.rounds import ALWAYS_PENDING, LATE_ROUNDS, WINDOW_SECONDS, JoinCoverage
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import STAGES

PERIOD = 2.0


def vectors(first: int, count: int, a_round: float = 1.0) -> list[StepVector]:
    """Return *count* steps from number *first* on, of which *a_round* fit in a round."""
    stages = (round(1e9 * PERIOD / a_round / len(STAGES)),) * len(STAGES)
    return [StepVector(step, 0, stages) for step in range(first, first + count)]


def paced(steps_a_round: int, rounds: int) -> tuple[StepRing, list[int]]:
    """Return the ring of a loop after some rounds, and what it has offered in all."""
    ring, offered = StepRing(Pace(PERIOD)), []
    for number in range(rounds):
        steps = vectors(number * steps_a_round + 1, steps_a_round, steps_a_round)
        offered += ring.take(steps, number * PERIOD)
    return ring, offered


def test_slow_loop_offers_every_step() -> None:
    """Up to 32 steps a round there is no sample."""
    ring, offered = paced(STEPS_A_ROUND, 5)

    assert ring.stride == 1
    assert offered == list(range(1, 5 * STEPS_A_ROUND + 1))


@pytest.mark.parametrize("steps", [STEPS_A_ROUND + 1, 200, 2_000])
def test_fast_loop_offers_a_bounded_sample(steps: int) -> None:
    """A thousand steps a second cost no more than sixteen do, from the first round on."""
    ring, offered = paced(steps, 20)
    in_first = [step for step in offered if step <= steps]

    assert FEW_STEPS_A_ROUND < len(in_first) <= 1.2 * STEPS_A_ROUND
    assert len(offered) == pytest.approx(20 * steps / ring.stride, rel=0.15)
    assert STEPS_A_ROUND / 2 <= steps / ring.stride <= STEPS_A_ROUND
    assert len(ring.offers) <= RING


def test_sample_follows_the_pace_without_flutter() -> None:
    """A loop that becomes slow is offered whole again, and a pace in between changes nothing."""
    ring, _ = paced(1_000, 3)
    assert ring.stride == 32
    ring.take(vectors(4_000, 32 * FEW_STEPS_A_ROUND + 1, 1_000), 3 * PERIOD)
    assert ring.stride == 32
    ring.take(vectors(6_000, 10, 10), 4 * PERIOD)
    assert ring.stride == 1


def test_samples_are_nested() -> None:
    """Ranks that disagree on how large a sample is have all of the smaller one in common."""
    for stride in (2, 4, 8):
        larger = {step for step in range(10_000) if is_sampled(step, stride)}
        smaller = {step for step in range(10_000) if is_sampled(step, 2 * stride)}
        assert smaller < larger
        assert len(larger) == pytest.approx(10_000 / stride, rel=0.1)


@pytest.mark.parametrize("every", [8, 40, 64, 100, 144, 1000])
def test_what_happens_every_so_many_steps_is_sampled_as_often_as_the_rest(every: int) -> None:
    """A checkpoint every 40 steps is in the sample in its due share, whatever the sample."""
    for stride in (4, 16):
        events = range(every, 1000 * every, every)
        share = sum(is_sampled(step, stride) for step in events) / len(events)
        assert share == pytest.approx(1 / stride, abs=3.5 * (1 / stride / len(events)) ** 0.5)
        sampled = [number for number, step in enumerate(events) if is_sampled(step, stride)]
        assert max(after - before for before, after in pairwise(sampled)) < 15 * stride


def test_steps_stay_until_everybody_has_posted_them() -> None:
    """A step is offered for two rounds and a half, and the last few whatever their age."""
    ring = StepRing(Pace(PERIOD))
    ring.take(vectors(1, 20), 0.0)
    ring.take([], ROUNDS * PERIOD)
    assert len(ring.offers) == 20
    ring.take(vectors(21, 1), ROUNDS * PERIOD + 0.1)

    assert [offer.step for offer in ring.offers] == list(range(22 - LAST_STEPS, 22))


def test_pace_is_the_period_but_for_slow_rounds() -> None:
    """Rounds lengthen a little on any machine: that changes no sample.

    An evaluation of ten minutes is no slow round, and matters for a few rounds only.
    """
    pace = Pace(PERIOD)
    for number in range(5):
        pace.begin_round(number * 1.4 * PERIOD)
    assert pace.seconds == PERIOD
    pace.begin_round(10.0 * PERIOD)
    assert pace.seconds == pytest.approx(4.4 * PERIOD)
    pace.begin_round(600.0)
    assert pace.seconds == LONGEST_ROUND * PERIOD
    for number in range(1, 2 * ROUNDS_REMEMBERED + 1):
        pace.begin_round(600.0 + number * PERIOD)
    assert pace.seconds == PERIOD


@pytest.mark.parametrize("slower", [1, 3])
def test_step_that_comes_too_late_is_lost_and_not_before(slower: int) -> None:
    """Without a peer's probe the share is 0 after a few rounds; until then nothing is known.

    Where a round takes three periods, a step has as many times longer.
    """
    pace = Pace(PERIOD)
    for number in range(3):
        pace.begin_round(number * slower * PERIOD)
    coverage = JoinCoverage(pace)
    coverage.offer(range(1, 2 + ALWAYS_PENDING), 100.0)
    coverage.joined(0, 0, 100.0 + slower * LATE_ROUNDS * PERIOD)
    assert coverage.ratio is None
    coverage.joined(0, 0, 100.1 + slower * LATE_ROUNDS * PERIOD)
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

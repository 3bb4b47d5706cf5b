"""What a rank offers: all of a slow loop's steps, a sample of a fast one's that all agree on."""

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
from rank_probe.measure.vectors import StepVector
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


def test_sample_stays_where_a_round_takes_its_steps_late() -> None:
    """A thread that waits for the interpreter finds more steps than a round has, then fewer."""
    ring = StepRing(Pace(PERIOD))
    for number, count in enumerate([25, 40, 10, 0, 50, 25]):
        ring.take(vectors(100 * number, count, 25), number * PERIOD)
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


def test_steps_stay_longer_while_rounds_take_longer() -> None:
    """Where rank 0 tells something every 6 s only, steps are offered for 15 s instead of 5."""
    pace = Pace(PERIOD)
    ring = StepRing(pace)
    for number in range(9):
        now = number * PERIOD
        pace.begin_round(now)
        if number % 3 == 0:
            pace.hear_rank_zero(now)
        ring.take(vectors(3 * number + 1, 3), now)

    assert [offer.step for offer in ring.offers] == list(range(4, 28))


def test_pace_is_the_period_while_rounds_are_about_as_long() -> None:
    """Rounds lengthen a little on any machine: that changes no sample."""
    pace = Pace(PERIOD)
    for number in range(5):
        pace.begin_round(number * 1.4 * PERIOD)
    assert pace.seconds == PERIOD
    pace.begin_round(10.0 * PERIOD)
    assert pace.seconds == pytest.approx(4.4 * PERIOD)


def test_pace_forgets_a_long_pause() -> None:
    """An evaluation of ten minutes is no slow round, and matters for a few rounds only."""
    pace = Pace(PERIOD)
    pace.begin_round(0.0)
    pace.begin_round(600.0)
    assert pace.seconds == LONGEST_ROUND * PERIOD
    for number in range(1, 2 * ROUNDS_REMEMBERED + 1):
        pace.begin_round(600.0 + number * PERIOD)

    assert pace.seconds == PERIOD

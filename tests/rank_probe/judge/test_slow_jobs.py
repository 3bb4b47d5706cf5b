"""Jobs of few steps an hour: a verdict rests on as few of them as the evidence allows."""

from dataclasses import replace

import pytest

from rank_probe.judge.verdict import PERSISTENT
from tests.alerts.jobs import Fault, Job, simulate
from tests.rank_probe.judged import judged_steps

STEP_SECONDS = 60.0
# A step and the exchange at its end.
USUAL_SECONDS = 1.1 * STEP_SECONDS


def steps_until_named(job: Job, late: Fault) -> int:
    """Return how many steps ended between the onset of *late* and the verdict that names it."""
    steps = simulate(replace(job, faults=(late,)))
    found = judged_steps(job, steps)
    assert {(each.rank, each.stage) for each in found.incidents} == {(late.rank, late.stage)}
    named = found.incidents[0].named
    return sum(late.start_seconds < step.end_seconds <= named for step in steps)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [4, 8, 32])
@pytest.mark.parametrize(("ratio", "start", "onset"), [(0.3, 8, 5), (0.1, 10, 13)])
def test_late_rank_is_named_within_a_few_steps(
    ratio: float, start: int, onset: int, ranks: int, seed: int
) -> None:
    """So many steps after the *start*, and so many after an *onset* later on."""
    job = Job(ranks=ranks, seed=seed, busy_seconds=STEP_SECONDS, seconds=60 * USUAL_SECONDS)
    late = Fault(2, "data", ratio)

    assert steps_until_named(job, late) <= start
    assert steps_until_named(job, replace(late, start_seconds=30 * USUAL_SECONDS)) <= onset


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_late_in_turn_are_not_named_by_chance(ranks: int) -> None:
    """One of few ranks is late in a few steps in a row sooner or later."""
    in_turn = Fault(None, "data", 0.5)
    for seed in range(10):
        job = Job(
            ranks=ranks,
            seed=seed,
            busy_seconds=STEP_SECONDS,
            seconds=100 * USUAL_SECONDS,
            faults=(in_turn,),
        )
        assert judged_steps(job, simulate(job)).named == set()


def test_a_second_of_short_steps_is_enough() -> None:
    """No time has to pass, only steps."""
    job = Job(busy_seconds=0.02, seconds=12.8, faults=(Fault(2, "data", 2.0),))
    steps = simulate(job)

    assert len(steps) == 31
    assert judged_steps(job, steps, every_seconds=0.1).named == {(2, "data", PERSISTENT)}

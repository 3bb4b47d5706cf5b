"""The judge tells a rank that pauses now and then from pauses that strike any rank."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from rank_probe.judge.verdict import DUTY, PAUSES, PERSISTENT
from tests.rank_probe.judged import Alter, Fault, Job, Step, altered, judged, judged_steps, simulate


def ends_of(job: Job, steps: list[Step]) -> list[float]:
    """When the steps ended that the first fault of *job* made longer."""
    fault, rank = job.faults[0], job.faults[0].rank or 0
    least = 0.9 * fault.ratio * job.busy_seconds
    return [
        step.end_seconds
        for step in steps
        if step.end_seconds > fault.start_seconds and step.stages[rank].get(fault.stage, 0) > least
    ]


def pause_together(every: int, stage: str, seconds: float, spread: float) -> Alter:
    """All ranks pause each *every* steps, for about as long, give or take *spread* of that."""
    draw = Random(2)

    def alter(step: Step, _: float) -> None:
        if step.number % every == 0:
            for own in step.stages:
                pause = seconds * max(0.0, draw.gauss(1, spread))
                own[stage] = own.get(stage, 0.0) + pause

    return alter


def pause(pauses: Mapping[int, tuple[str, float]]) -> Alter:
    """Rank 0 takes so many seconds longer in a stage, by the steps' numbers."""

    def alter(step: Step, _: float) -> None:
        if step.number in pauses:
            stage, seconds = pauses[step.number]
            step.stages[0][stage] = step.stages[0].get(stage, 0.0) + seconds

    return alter


FROM_60 = Fault(0, "checkpoint", 2, every=25, start_seconds=60)  # What is usual is known by then.


@pytest.mark.parametrize(
    ("job", "fault", "kind"),
    [
        # It saves or evaluates for all, or does something short between the stages: it logs.
        (Job(seconds=180), FROM_60, DUTY),
        (Job(2, busy_seconds=0.1, seconds=40), replace(FROM_60, ratio=10, start_seconds=0), DUTY),
        (Job(2, busy_seconds=3, seconds=500), replace(FROM_60, stage="eval", ratio=0.4), DUTY),
        (Job(8, seconds=200), Fault(3, "checkpoint", 8, 40, 60), DUTY),
        (Job(8, seconds=180), Fault(0, "other", 0.5, 20, 60), DUTY),
        # Anything else that only it does.
        (Job(8, seconds=180), Fault(3, "other", 2, 20, 60), PAUSES),
        (Job(seconds=120), Fault(2, "data", 2, 4, 60), PAUSES),
        (Job(8, seconds=180), Fault(3, "forward", 0.5, 10, 60), PAUSES),
        (Job(8, seconds=620), Fault(2, "data", 10, 200, 60), PAUSES),
    ],
)
def test_rank_that_pauses_is_one_incident_with_one_stage_and_its_cost(
    job: Job, fault: Fault, kind: str
) -> None:
    """It is named at its third save, or its fourth pause, and for as long as it goes on.

    With its period and its length, also if it has paused since the start of the job. All others
    wait for as long as it pauses: at the first publication and at the last.
    """
    job = replace(job, seed=1, faults=(fault,))
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents
    ends = ends_of(job, [step for step in steps if step.number > 1])
    period = (ends[-1] - ends[0]) / (len(ends) - 1)
    seconds = fault.ratio * job.busy_seconds

    assert found.named == {(fault.rank, fault.stage, kind)}
    assert incident.cleared is None
    assert incident.named < ends[2 if fault.stage in ("checkpoint", "eval") else 3] + 5
    assert incident.onset == pytest.approx(ends[0], abs=0.01)
    for late in (incident.first, incident.last):
        assert late.gpus_lost == pytest.approx((job.ranks - 1) * seconds / period, rel=0.15)
        assert late.every_steps == fault.every
        assert late.pause_seconds == pytest.approx(seconds, rel=0.15)


def test_saves_at_no_regular_steps_are_told_as_soon() -> None:
    """A rank that saves needs no pattern: no other does. Its own hiccups are no saves."""
    job = Job(ranks=2, seed=1, busy_seconds=0.1, seconds=60)
    saves = dict.fromkeys((130, 161, 187, 220, 245), ("checkpoint", 1.0))
    hiccups = dict.fromkeys((112, 123, 140, 152, 171, 180), ("forward", 0.04))
    steps = altered(job, pause(saves | hiccups))
    (incident,) = judged_steps(job, steps).incidents

    third = next(step.end_seconds for step in steps if step.number == 187)
    assert (incident.rank, incident.stage, incident.kind) == (0, "checkpoint", DUTY)
    assert third <= incident.named < third + 2.5
    assert incident.first.every_steps in (28, 29)
    assert incident.first.pause_seconds == pytest.approx(1, abs=0.02)


def test_short_pauses_beside_long_ones_are_not_told() -> None:
    """How often a rank pauses, and for how long, is said of what costs."""
    job = Job(seed=1, busy_seconds=0.1, seconds=80)
    often = dict.fromkeys(range(110, 800, 20), ("data", 0.05))
    seldom = dict.fromkeys(range(200, 800, 100), ("data", 0.8))
    (late,) = judged_steps(job, altered(job, pause(often | seldom))).last.late
    assert (late.kind, late.every_steps) == (PAUSES, 100)
    assert late.pause_seconds == pytest.approx(0.8, rel=0.05)


def test_rank_that_saves_and_evaluates_is_told_once_with_the_cost_of_both() -> None:
    """The verdict names the costlier of the two stages, once that is known."""
    job = Job(seed=1, busy_seconds=0.1, seconds=60)
    evaluates = dict.fromkeys(range(120, 600, 40), ("eval", 0.5))
    saves = dict.fromkeys(range(215, 600, 25), ("checkpoint", 1.0))
    found = judged_steps(job, altered(job, pause(evaluates | saves)))
    (late,) = found.last.late

    assert [each.stage for each in found.incidents] == ["eval", "checkpoint"]
    assert (late.rank, late.stage, late.kind, late.every_steps) == (0, "checkpoint", DUTY, 25)
    assert late.pause_seconds == pytest.approx(1, abs=0.02)
    step_seconds = 0.108 + 0.5 / 40 + 1.0 / 25
    assert late.gpus == pytest.approx(
        {"checkpoint": 3 * 1.0 / 25 / step_seconds, "eval": 3 * 0.5 / 40 / step_seconds}, rel=0.1
    )
    assert max(len(verdict.late) for _, verdict in found.verdicts) == 1


def test_rank_on_duty_is_late_when_it_is_so_between_its_saves() -> None:
    """It saves every hundredth step, and from then on all of its steps take a quarter longer."""
    faults = Fault(0, "checkpoint", 2, every=100), Fault(0, "backward", 0.25, start_seconds=200)
    found = judged(Job(ranks=8, seed=1, seconds=280, faults=faults))

    assert found.named == {(0, "checkpoint", DUTY), (0, "backward", PERSISTENT)}
    assert found.incidents[-1].onset == pytest.approx(200, abs=2)
    assert found.last.gpus_lost["persistent"] == pytest.approx(7 * 0.125 / 0.65, rel=0.15)


def test_rank_late_in_every_step_of_a_sample_does_not_pause() -> None:
    """However far apart the steps are that are compared."""
    job = Job(8, 1, (Fault(3, "data", 0.5, start_seconds=60),), seconds=160, busy_seconds=0.03)
    found = judged_steps(job, simulate(job), every=lambda _: 8)
    assert found.named == {(3, "data", PERSISTENT)}


def test_duty_is_one_also_when_steps_become_shorter() -> None:
    """The saves before that are compared with the steps of then."""

    def alter(step: Step, at: float) -> None:
        for own in step.stages if at > 150 else ():
            own.update({stage: own[stage] / 2 for stage in own.keys() - {"checkpoint"}})

    job = Job(ranks=8, seed=1, seconds=240, faults=(Fault(0, "checkpoint", 4, every=20),))
    assert judged_steps(job, altered(job, alter)).named == {(0, "checkpoint", DUTY)}


def test_duty_is_told_of_a_rank_that_is_a_little_slower_too() -> None:
    """Its saves cost far more than what is within the noise, and it is named once."""
    faults = Fault(0, "forward", 0.03), Fault(0, "checkpoint", 20, every=250)
    found = judged(Job(8, busy_seconds=2.0, seconds=2600, faults=faults), every_seconds=10)

    assert [(each.rank, each.stage, each.kind) for each in found.verdicts[-1][1].late] == [
        (0, "checkpoint", DUTY)
    ]


def test_duty_is_told_where_some_rank_pauses_all_the_time() -> None:
    faults = Fault(None, "other", 0.5, every=4), Fault(0, "checkpoint", 6, every=550)

    assert (0, "checkpoint", DUTY) in judged(Job(seconds=1100, faults=faults)).named


def test_slowest_of_many_that_save_is_not_on_duty() -> None:
    """All ranks write their shards, and one always takes three times as long."""
    together = pause_together(40, "checkpoint", 1.5, 0.0)

    def alter(step: Step, at: float) -> None:
        together(step, at)
        if step.number > 120:
            step.stages[3]["checkpoint"] = 3 * step.stages[3].get("checkpoint", 0.0)

    job = Job(ranks=8, seed=2, seconds=300)
    assert judged_steps(job, altered(job, alter)).named == {(3, "checkpoint", PAUSES)}


def test_rank_that_paused_once_is_not_a_different_one_in_each_step() -> None:
    """What the others waited is lost to a single stop; the noise of steps costs what it does."""
    fault = Fault(5, "other", 60, every=300, start_seconds=60.0)
    job = Job(ranks=8, seed=1, seconds=430, faults=(fault,))
    steps = simulate(job)
    found = judged_steps(job, steps)
    ends = ends_of(job, steps)

    assert found.named == set()
    assert max(said.gpus_lost.get("rotating", 0.0) for _, said in found.verdicts) < 0.3
    for end in ends:
        said = next(verdict for at, verdict in found.verdicts if at > end)
        assert said.gpus_lost["pause"] > 3
        assert said.slowdown == 1


@pytest.mark.parametrize(
    ("ranks", "every", "stage", "seconds", "spread"),
    [(16, 20, "checkpoint", 1, 0.2), (2, 20, "data", 1, 0.2), (2, 200, "checkpoint", 5, 0.1)],
)
def test_pauses_of_all_ranks_together_name_nobody(
    ranks: int, every: int, stage: str, seconds: float, spread: float
) -> None:
    """Of ranks that all write a checkpoint at once, the one that takes longest is not late."""
    job = Job(ranks=ranks, seed=2, seconds=600 if every > 50 else 300)
    steps = altered(job, pause_together(every, stage, seconds, spread))

    assert judged_steps(job, steps).named == set()

"""The judge tells a rank that pauses now and then from pauses that strike any rank."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from rank_probe.judge.verdict import DUTY, PAUSES
from tests.rank_probe.judged import Fault, Job, Step, judged, judged_steps, simulate


def ends_of(job: Job, steps: list[Step]) -> list[float]:
    """When the steps ended that the first fault of *job* made longer."""
    fault, rank = job.faults[0], job.faults[0].rank or 0
    least = 0.9 * fault.ratio * job.busy_seconds
    return [
        step.end_seconds
        for step in steps
        if step.end_seconds > fault.start_seconds and step.stages[rank].get(fault.stage, 0) > least
    ]


def paused_together(job: Job, stage: str, every: int, ratio: float, spread: float) -> list[Step]:
    """The steps of *job* where all ranks pause each *every* steps, for about as long as the others.

    Each takes *ratio* of a usual step, with a standard deviation of *spread* of that.
    """
    draw = Random(job.seed)
    steps, later = [], 0.0
    for step in simulate(job):
        stages, sync = [dict(own) for own in step.stages], step.sync
        if step.number % every == 0:
            for own in stages:
                seconds = job.busy_seconds * ratio * max(0.0, draw.gauss(1, spread))
                own[stage] = own.get(stage, 0.0) + seconds
            busy = [sum(own.values()) for own in stages]
            slowest = max(busy) + step.busy[0] + sync[0] - max(step.busy)
            sync = [slowest - own for own in busy]
            later += slowest - step.busy[0] - step.sync[0]
        steps.append(Step(step.number, step.end_seconds + later, stages, sync))
    return steps


def paused_alone(job: Job, pauses: Mapping[int, tuple[str, float]]) -> list[Step]:
    """The steps of *job* where rank 0 takes so many seconds longer in a stage, by their numbers."""
    steps, later = [], 0.0
    for step in simulate(job):
        if step.number in pauses:
            stage, seconds = pauses[step.number]
            step.stages[0][stage] = step.stages[0].get(stage, 0.0) + seconds
            longest = max(step.busy)
            step.sync[:] = [longest - own for own in step.busy]
            later += seconds
        steps.append(replace(step, end_seconds=step.end_seconds + later))
    return steps


# Who pauses how often, for how many usual steps, in a job of how many ranks and seconds.
PAUSING = [
    (4, Fault(2, "data", 2, every=4), 240),
    (8, Fault(3, "forward", 0.5, every=10), 240),
    (4, Fault(0, "checkpoint", 8, every=40), 400),
    (8, Fault(0, "checkpoint", 10, every=200), 900),
    (16, Fault(5, "other", 60, every=500), 1600),
    (8, Fault(2, "data", 4, every=50, start_seconds=300), 520),
]


@pytest.mark.parametrize(("ranks", "fault", "seconds"), PAUSING)
def test_rank_that_pauses_is_one_incident_with_one_stage_and_its_cost(
    ranks: int, fault: Fault, seconds: float
) -> None:
    """It is named at its fourth pause, if not at the third, and for as long as it goes on.

    All others wait for as long as it pauses: at the first publication and at the last.
    """
    fault = replace(fault, start_seconds=fault.start_seconds or 60.0)  # What is usual is known.
    job = Job(ranks=ranks, seed=1, seconds=seconds, faults=(fault,))
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents
    ends = ends_of(job, steps)
    period = (ends[-1] - ends[0]) / (len(ends) - 1)
    truth = (ranks - 1) * fault.ratio * job.busy_seconds / period

    kind = DUTY if fault.stage == "checkpoint" else PAUSES
    assert found.named == {(fault.rank, fault.stage, kind)}
    assert incident.cleared is None
    assert incident.named < ends[3] + 5  # The judge looks every two seconds.
    assert incident.onset == pytest.approx(ends[0], abs=0.01)
    assert incident.first.gpus_lost == pytest.approx(truth, rel=0.1)
    assert incident.last.gpus_lost == pytest.approx(truth, rel=0.1)
    assert incident.last.every_steps == fault.every
    assert incident.last.pause_seconds == pytest.approx(fault.ratio * job.busy_seconds, rel=0.1)


@pytest.mark.parametrize(
    ("stage", "ranks", "busy_seconds", "since"),
    [
        ("checkpoint", 2, 0.1, 0.0),
        ("eval", 4, 0.5, 0.0),
        ("checkpoint", 4, 0.5, 60.0),
        ("eval", 2, 3.0, 60.0),
    ],
)
def test_rank_that_saves_for_all_is_told_two_saves_after_the_first(
    stage: str, ranks: int, busy_seconds: float, since: float
) -> None:
    """With its period and its length, also if it has saved since the start of the job."""
    fault = Fault(0, stage, 1 / busy_seconds, every=25, start_seconds=since)
    job = Job(ranks=ranks, seed=1, busy_seconds=busy_seconds, faults=(fault,))
    job = replace(job, seconds=since + 120 * busy_seconds * 1.1 + 10)
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents
    first, _, third, *_ = ends_of(job, [step for step in steps if step.number > 1])

    assert found.named == {(0, stage, DUTY)}
    assert incident.named < third + max(2.5, 1.5 * busy_seconds)  # It looks every two seconds.
    assert incident.onset == pytest.approx(first, abs=0.01)
    assert incident.first.every_steps == 25
    assert incident.first.pause_seconds == pytest.approx(1, abs=0.15 * busy_seconds + 0.01)


def test_saves_at_no_regular_steps_are_told_as_soon() -> None:
    """A rank that saves every few seconds: no other does, so it needs no pattern.

    Its own hiccups are no saves.
    """
    job = Job(ranks=2, seed=1, busy_seconds=0.1, seconds=60)
    saves = dict.fromkeys((130, 161, 187, 220, 245), ("checkpoint", 1.0))
    hiccups = dict.fromkeys((112, 123, 140, 152, 171, 180), ("forward", 0.04))
    steps = paused_alone(job, saves | hiccups)
    (incident,) = judged_steps(job, steps).incidents

    third = next(step.end_seconds for step in steps if step.number == 187)
    assert (incident.rank, incident.stage, incident.kind) == (0, "checkpoint", DUTY)
    assert third <= incident.named < third + 2.5
    assert incident.first.every_steps in (28, 29)
    assert incident.first.pause_seconds == pytest.approx(1, abs=0.02)


def test_rank_that_saves_and_evaluates_is_told_once_with_the_cost_of_both() -> None:
    """As what costs more, once that is known."""
    job = Job(seed=1, busy_seconds=0.1, seconds=60)
    evaluates = dict.fromkeys(range(120, 600, 40), ("eval", 0.5))
    saves = dict.fromkeys(range(215, 600, 25), ("checkpoint", 1.0))
    steps = paused_alone(job, evaluates | saves)
    found = judged_steps(job, steps)
    (late,) = found.last.late

    assert [each.stage for each in found.incidents] == ["eval", "checkpoint"]
    assert (late.rank, late.stage, late.kind, late.every_steps) == (0, "checkpoint", DUTY, 25)
    assert late.pause_seconds == pytest.approx(1, abs=0.02)
    step_seconds = 0.108 + 0.5 / 40 + 1.0 / 25
    assert late.gpus == pytest.approx(
        {"checkpoint": 3 * 1.0 / 25 / step_seconds, "eval": 3 * 0.5 / 40 / step_seconds}, rel=0.1
    )
    assert max(len(verdict.late) for _, verdict in found.verdicts) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(0, "other", 0.5, every=20), DUTY),
        (Fault(0, "eval", 8, every=40), DUTY),
        (Fault(3, "checkpoint", 8, every=40), DUTY),
        (Fault(3, "other", 2.0, every=20), PAUSES),
        (Fault(0, "data", 2, every=20), PAUSES),
    ],
)
def test_what_one_rank_does_for_all_is_its_duty(fault: Fault, kind: str) -> None:
    """It saves or evaluates, or does something short between the stages: it logs."""
    fault = replace(fault, start_seconds=60.0)
    found = judged(Job(ranks=8, seed=1, seconds=480, faults=(fault,)))

    assert found.named == {(fault.rank, fault.stage, kind)}


def test_slowest_of_many_that_save_is_not_on_duty() -> None:
    """All ranks write their shards, and one always takes three times as long."""
    job = Job(ranks=8, seed=2, seconds=600)
    steps = paused_together(job, "checkpoint", 40, 3, 0.0)
    for step in steps:
        if step.number % 40 == 0 and step.number > 120:
            step.stages[3]["checkpoint"] *= 3
            longest = max(step.busy)
            step.sync[:] = [longest - own for own in step.busy]

    assert judged_steps(job, steps).named == {(3, "checkpoint", PAUSES)}


def test_rank_that_paused_once_is_not_a_different_one_in_each_step() -> None:
    """What the others waited is lost to a late rank; that of noise is lost to whichever it is."""
    fault = Fault(5, "other", 60, every=500, start_seconds=60.0)
    job = Job(ranks=8, seed=1, seconds=700, faults=(fault,))
    steps = simulate(job)
    found = judged_steps(job, steps)
    ends = ends_of(job, steps)

    assert found.named == set()
    assert max(said.gpus_lost.get("rotating", 0.0) for _, said in found.verdicts) < 0.3
    for end in ends:
        said = next(verdict for at, verdict in found.verdicts if at > end)
        assert said.gpus_lost["persistent"] > 3
        assert said.slowdown == 1


def test_pauses_that_stop_are_over() -> None:
    """Three intervals after the last pause the rank is no longer late."""
    fault = Fault(2, "data", 8, every=40, end_seconds=250)
    job = Job(ranks=8, seed=2, seconds=500, faults=(fault,))
    steps = simulate(job)
    (incident,) = judged_steps(job, steps).incidents
    ends = ends_of(job, steps)

    assert incident.cleared == pytest.approx(ends[-1] + 3 * (ends[-1] - ends[-2]), abs=10)


@pytest.mark.parametrize(
    ("stage", "ranks", "every", "ratio", "spread"),
    [
        ("checkpoint", 16, 20, 2, 0.2),
        ("data", 2, 20, 2, 0.2),
        ("data", 16, 50, 4, 0.1),
        ("checkpoint", 2, 200, 10, 0.1),
    ],
)
def test_pauses_of_all_ranks_together_name_nobody(
    stage: str, ranks: int, every: int, ratio: float, spread: float
) -> None:
    """Of ranks that all write a checkpoint at once, the one that takes longest is not late."""
    job = Job(ranks=ranks, seed=2, seconds=900 if every > 50 else 400)
    steps = paused_together(job, stage, every, ratio, spread)

    assert judged_steps(job, steps).named == set()

"""The judge tells what all ranks stop for, one long stop, and ranks that stop in turn."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from rank_probe.judge.stalls import Stalls
from rank_probe.judge.verdict import Pause, Stall
from rank_probe.judge.windows import Leader, Mark
from rank_probe.wire.stages import STAGES
from tests.rank_probe.judged import Alter, Fault, Job, Step, altered, judged, judged_steps


def near(value: float, rel: float | None = None, abs: float | None = None) -> Any:
    """Return what equals a number that is about *value*."""
    return pytest.approx(value, rel, abs)


QUICK = Job(seed=1, busy_seconds=0.03, seconds=60)


def stop(every: int, stage: str, seconds: float, phases: tuple[int, ...]) -> Alter:
    """Rank r stops each *every* steps from number 100 on, *phases[r]* steps later than they say."""

    def alter(step: Step, _: float) -> None:
        for own, phase in zip(step.stages, phases, strict=True):
            if step.number >= 100 and (step.number - phase) % every == 0:
                own[stage] = own.get(stage, 0.0) + seconds

    return alter


@pytest.mark.parametrize("stage", ["data", "checkpoint", "forward"])
def test_what_all_ranks_stop_for_is_told_within_three_periods(stage: str) -> None:
    """All loaders run dry for 2 s after each 32 steps: two thirds of the time."""
    steps = altered(replace(QUICK, seconds=20), stop(32, stage, 2.0, (0, 0, 0, 0)))
    found = judged_steps(replace(QUICK, seconds=20), steps)
    third = next(step.end_seconds for step in steps if step.number == 128 + 3 * 32)
    first = next(at for at, said in found.verdicts if said.stalls)
    (stall,) = found.last.stalls

    assert found.named == set()
    assert first < third + 2.5
    assert stall == Stall(stage, near(2 / 3.06, rel=0.05), 32, near(2, rel=0.02))
    assert found.last.gpus_lost["shared"] == near(4 * stall.share)
    assert not found.last.pauses


def test_steady_wait_for_data_is_shared_from_a_fifth_on() -> None:
    """It is in each step: no stall has a length, though a few are longer. Then it ends."""
    waits = Fault(None, "data", 0.5)
    for ratio, stalls in ((0.05, ()), (0.3, (Stall("data", near(0.28, abs=0.03)),))):
        faults = tuple(replace(waits, rank=rank, ratio=ratio) for rank in range(4))
        assert judged(replace(QUICK, faults=faults)).last.stalls == stalls
    seldom = tuple(replace(waits, rank=rank, ratio=40, every=300) for rank in range(4))
    (stall,) = judged(replace(QUICK, faults=faults + seldom)).last.stalls
    assert stall == Stall("data", near(0.33, abs=0.05))
    ended = tuple(
        replace(waits, rank=rank, ratio=20, every=30, end_seconds=60) for rank in range(4)
    )
    found = judged(replace(QUICK, seconds=200, faults=ended))
    assert any(said.stalls for _, said in found.verdicts)
    assert not found.last.stalls


def test_stall_of_hours_ago_says_nothing_of_those_of_now() -> None:
    """Neither their share nor when they are over: each takes 60 s of six minutes, then none."""
    stalls = Stalls()
    usual = Leader(0, 0.0, 0, 0, 0.0, 0.0, 1.0, STAGES.index("checkpoint"))
    late = [(43_200.0 + 360 * number, 61.0) for number in range(11)]
    for number, (at, seconds) in enumerate([(100.0, 2.3), *late]):
        steps = range(300 * number, 300 * number + 300)
        stalls.add([usual._replace(step=step, at=at - 300 + step % 300) for step in steps], 64)
        stalls.add([usual._replace(step=steps[-1] + 1, at=at, baseline=seconds)], 64)
    window = SimpleNamespace(groups=[SimpleNamespace(stages=[0.0] * len(STAGES))], steps=1)
    now: Any = SimpleNamespace(**vars(window), begin=Mark(0, at, None), seconds=1.0, elapsed=1.0)

    assert [each.share for each in stalls.shared(now, at)] == [near(60 / 360, rel=0.01)]
    assert list(stalls.shared(now, at + 1200)) == []


def test_sample_of_slower_steps_is_no_stall() -> None:
    """Of each four steps one is compared; from a minute on all are two and a half times as long."""

    def alter(step: Step, at: float) -> None:
        for own in step.stages if at > 60 else ():
            own.update({stage: 2.5 * seconds for stage, seconds in own.items()})

    job = replace(QUICK, seconds=120)
    found = judged_steps(job, altered(job, alter), every=lambda _: 4)
    assert not any(said.stalls for _, said in found.verdicts)


@pytest.mark.parametrize("rank", [2, None])
def test_one_long_stop_is_told_once_with_what_it_cost(rank: int | None) -> None:
    """For half an hour: which rank, or all, where, for how long, and how long ago."""
    job = replace(QUICK, seconds=400)
    phases = tuple(0 if rank in (each, None) else 1 for each in range(4))

    def alter(step: Step, at: float) -> None:
        if step.number == 400:
            stop(400, "data", 60.0, phases)(step, at)

    steps = altered(job, alter)
    found = judged_steps(job, steps)
    (pause,) = found.last.pauses
    ended = next(step.end_seconds for step in steps if step.number == 400)
    told = next(said for at, said in found.verdicts if at >= ended)
    since = near(steps[-1].end_seconds - ended)

    assert found.named == set()
    cost = near(180 if rank == 2 else 240, rel=0.02)
    assert pause == Pause(rank, "data", 400, since, near(60, rel=0.01), cost)
    assert told.gpus_lost["pause"] > 0.5 * (3 if rank == 2 else 4)
    assert told.gpus_lost["rotating"] + told.gpus_lost["persistent"] < 0.05
    assert found.last.gpus_lost["pause"] == 0
    assert not found.last.stalls


def test_stop_that_two_usual_steps_take_is_not_long() -> None:
    """A batch of 210 s is among steps of 60 s; one of 100 s is not, nor 2 s among 30 ms."""
    slow = Job(seed=1, busy_seconds=60, seconds=6000)
    for job, seconds, told in ((slow, 210, 1), (slow, 100, 0), (QUICK, 2, 0), (QUICK, 6, 1)):

        def alter(step: Step, _: float, seconds: float = seconds) -> None:
            if step.number == 80:
                step.stages[1]["data"] += seconds

        assert len(judged_steps(job, altered(job, alter)).last.pauses) == told


def test_ranks_that_stop_in_turn_are_nobodys_fault() -> None:
    """Each collects garbage for 0.4 s every 25 steps: none is named, and all are told together."""
    steps = altered(QUICK, stop(25, "other", 0.4, (0, 6, 11, 19)))
    found = judged_steps(QUICK, steps)
    (turn,) = found.last.stalls
    lost = found.last.gpus_lost["rotating"]

    assert found.named == set()
    assert turn == Stall("other", near(lost / 4), 25, near(0.4, rel=0.02), True)
    assert lost > 1


QUIET = Job(seed=3, busy_seconds=0.2, seconds=60)
# Of so many ranks some stop in nearly every step: that costs 7 %, more than they would vary.
MANY = Job(96, 3, busy_seconds=1.0, seconds=60, stage_noise=0.01)


@pytest.mark.parametrize(
    ("job", "rotating", "noise"),
    [
        *(
            (
                replace(QUIET, ranks=n, stage_noise=noise, static_spread=spread),
                (0, 0.01),
                (0.005, 1),
            )
            for n, noise, spread in ((4, 0.04, 0), (64, 0.03, 0), (64, 0.03, 0.01), (2, 0.05, 0))
        ),
        # Ranks whose own times vary by a fifth are given uneven batches.
        (replace(QUIET, ranks=8, stage_noise=0.35), (0.1, 1), (0, 0.071)),
        (MANY, (0, 0.01), (0, 1)),
        (replace(MANY, faults=(Fault(None, "other", 0.08),)), (0.03, 1), (0, 1)),
    ],
)
def test_noise_is_told_from_a_rotating_loss(
    job: Job, rotating: tuple[float, float], noise: tuple[float, float]
) -> None:
    """What so many ranks cost that vary is told apart, to less than a hundredth of the job."""
    lost = judged(job).last.gpus_lost

    for (least, most), kind in ((rotating, "rotating"), (noise, "noise")):
        assert least * job.ranks <= lost[kind] < most * job.ranks


def test_loss_in_turn_does_not_swing_about_a_threshold() -> None:
    """It is told as falling once it has fallen by a tenth, not from look to look."""
    job = replace(QUIET, ranks=8, stage_noise=0.35, seconds=600)
    lost = [each.gpus_lost["rotating"] for _, each in judged(job).verdicts if each.gpus_lost]
    assert [(a, b) for a, b in pairwise(lost[30:]) if 0.9 * a < b < a - 1e-9] == []

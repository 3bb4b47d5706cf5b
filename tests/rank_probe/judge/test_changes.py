"""The judge says what changed where a whole peer group takes longer than it did."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from rank_probe.judge.verdict import MOST_LATE, Change
from tests.alerts.jobs import STAGE_SHARES, Fault, Job, Step, simulate
from tests.rank_probe.judged import Judged, judged, judged_steps

SINCE = 300.0


def slower(ranks: range, stage: str, ratio: float, until: float = 1e9) -> tuple[Fault, ...]:
    return tuple(Fault(rank, stage, ratio, 1, SINCE, until) for rank in ranks)


def half_slower(ranks: int, stage: str, seed: int) -> Job:
    faults = slower(range(ranks // 2, ranks), stage, 0.5)
    return Job(ranks=ranks, seed=seed, seconds=500, group_work=(1.0, 1.0), faults=faults)


def takes(stage: str, longer: float) -> float:
    """Return how many times as long *stage* takes with *longer* more of a step."""
    return 1 + longer / STAGE_SHARES[stage]


@pytest.mark.parametrize(
    ("job", "group", "stage", "ratio"),
    [
        # Interference on one pipeline stage: its forward takes three times what it took.
        *(
            (half_slower(ranks, stage, seed), "g1", stage, takes(stage, 0.5))
            for ranks, stage in [(8, "forward"), (4, "data"), (2, "backward")]
            for seed in range(3)
        ),
        # All ranks take half as long again in every stage: the largest says it.
        (Job(ranks=8, seed=1, seconds=600, slow_together_seconds=SINCE), "g0", "backward", 1.5),
        # What a stage took is known without the wait too.
        (
            Job(seed=4, seconds=500, sync_measured=False, faults=slower(range(4), "data", 0.5)),
            *("g0", "data", takes("data", 0.5)),
        ),
        *(
            (
                Job(seed=4, seconds=600, faults=slower(range(4), "forward", longer)),
                *("g0", "forward", takes("forward", longer)),
            )
            for longer in (0.1, 0.2)
        ),
    ],
)
def test_stage_of_a_group_that_became_slower_is_told(
    job: Job, group: str, stage: str, ratio: float
) -> None:
    """It is nobody's fault: the group, its stage and how much longer that takes, since when."""
    found = judged(job)
    (change,) = found.last.changes

    assert found.named == set()
    assert (change.peer_group, change.stage) == (group, stage)
    assert change.ratio == pytest.approx(ratio, rel=0.05)
    onset = found.verdicts[-1][0] - change.since_seconds
    assert onset == pytest.approx(SINCE, abs=5)


def test_change_is_told_from_a_minute_of_steps_on_until_it_is_over() -> None:
    """A storage that was throttled for five minutes is one change with one stage meanwhile."""
    found = judged(Job(seed=4, seconds=800, faults=slower(range(4), "data", 0.5, 600)))
    told = [(at, change) for at, verdict in found.verdicts for change in verdict.changes]

    assert SINCE < told[0][0] <= SINCE + 60
    assert 600 < told[-1][0] < 660
    assert {(change.peer_group, change.stage) for _, change in told} == {("g0", "data")}
    assert len(told) == sum(told[0][0] <= at <= told[-1][0] for at, _ in found.verdicts)


@pytest.mark.parametrize(
    "job",
    [
        Job(seconds=900),
        Job(seconds=900, stage_noise=0.2, common_noise=0.3),
        Job(seconds=900, faults=(Fault(None, "data", 0.5),)),
        Job(seconds=900, faults=(Fault(1, "data", 0.5, start_seconds=SINCE),)),
        Job(seconds=900, faults=(Fault(1, "checkpoint", 10, every=60, start_seconds=SINCE),)),
        # A minute that is a tenth slower is a hiccup.
        Job(seconds=900, faults=slower(range(4), "forward", 0.1, SINCE + 60)),
    ],
)
def test_noise_and_late_ranks_are_no_change(job: Job) -> None:
    """The usual time of the group stays as it was."""
    assert not any(verdict.changes for _, verdict in judged(job).verdicts)


LATER = 1200.0


def told(found: Judged) -> list[tuple[float, Change]]:
    """Every change in every verdict, and when."""
    return [(at, change) for at, verdict in found.verdicts for change in verdict.changes]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stage", ["data", "forward", "backward", "optimizer"])
def test_three_percent_are_told_within_five_minutes(stage: str, seed: int) -> None:
    """In one stage of all ranks, after twenty minutes; with what it costs the job."""
    faults = tuple(Fault(rank, stage, 0.03, 1, LATER) for rank in range(8))
    found = judged(Job(ranks=8, seed=seed, seconds=LATER + 300, faults=faults), 5.0)
    said = told(found)

    assert LATER < said[0][0] < LATER + 300
    assert {change.stage for _, change in said} == {stage}
    assert {at for at, _ in said} == {at for at, _ in found.verdicts if at >= said[0][0]}
    last = said[-1][1]
    assert last.slower == 0
    assert last.step_ratio == pytest.approx(1.03, abs=0.01)
    assert last.gpus == pytest.approx(8 * (1 - 1 / last.step_ratio))
    assert found.named == set()


@pytest.mark.parametrize(
    ("ranks", "busy", "seed"),
    [(8, 1.0, 1), *((8, 2.0, seed) for seed in (1, 2, 39, 44)), (8, 3.0, 1), (64, 1.0, 3)],
)
def test_three_percent_are_told_within_five_minutes_in_slower_steps(
    ranks: int, busy: float, seed: int
) -> None:
    """After half an hour, which is few steps then."""
    faults = tuple(Fault(rank, "data", 0.03, 1, 1800) for rank in range(ranks))
    job = Job(ranks=ranks, seed=seed, seconds=2100, busy_seconds=busy, faults=faults)
    said = told(judged(job, 5.0))

    assert said[0][0] > 1800
    assert {change.stage for _, change in said} == {"data"}


def stretched(job: Job, factor: Callable[[float], float]) -> list[Step]:
    """The steps of *job*, whose work takes *factor* of the time as long."""
    steps, later = [], 0.0
    for step in simulate(job):
        times = factor(step.end_seconds + later)
        stages = [{name: times * spent for name, spent in own.items()} for own in step.stages]
        busy = [sum(own.values()) for own in stages]
        wire = step.busy[0] + step.sync[0] - max(step.busy)
        later += max(busy) - max(step.busy)
        sync = [max(busy) + wire - own for own in busy]
        steps.append(Step(step.number, step.end_seconds + later, stages, sync))
    return steps


def test_more_work_is_no_change() -> None:
    """Sequences twice as long take longer, and so does the same work on a slower machine."""
    job = Job(seed=4, seconds=900)
    steps = stretched(job, lambda at: 2.0 if at > SINCE else 1.0)
    longer = judged_steps(job, steps, work=lambda step: 2e4 if step.end_seconds > SINCE else 1e4)
    same = judged_steps(job, steps, work=lambda _: 1e4)

    assert told(longer) == []
    assert told(same)[-1][1].step_ratio == pytest.approx(2, abs=0.1)


def drift(deviation: float, seconds: float, seed: int) -> Callable[[float], float]:
    """Noise that all ranks share, which is forgotten after *seconds*."""
    draw, state = Random(seed), [0.0, 0.0]

    def factor(at: float) -> float:
        kept = math.exp(-(at - state[0]) / seconds)
        state[1] = kept * state[1] + deviation * math.sqrt(1 - kept**2) * draw.gauss(0, 1)
        state[0] = at
        return math.exp(state[1])

    return factor


@pytest.mark.parametrize(
    "factor",
    [
        lambda at: 1 + at / 1800,  # a schedule: three times as long after an hour
        drift(0.02, 120, 1),
        drift(0.03, 600, 2),
    ],
    ids=["rises slowly", "drifts for minutes", "drifts for ten minutes"],
)
def test_what_rises_slowly_or_drifts_is_no_change(factor: Callable[[float], float]) -> None:
    job = Job(seed=4, seconds=3600)
    assert told(judged_steps(job, stretched(job, factor), 5.0)) == []


def test_what_rises_ever_faster_is_no_change() -> None:
    """What has risen for long is expected to rise on: to twenty times in an hour."""
    job = Job(seed=4, seconds=1140)
    assert told(judged_steps(job, stretched(job, lambda at: math.exp(at / 1200)), 5.0)) == []


@pytest.mark.parametrize("seconds", [15, 25])
def test_hiccup_of_the_whole_job_is_no_change(seconds: float) -> None:
    """It fills most of the shortest stretch that is looked at, and does not last."""
    faults = slower(range(4), "data", 0.5, SINCE + seconds)
    assert told(judged(Job(seed=4, seconds=600, faults=faults))) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seconds", [15, 25])
def test_hiccup_of_many_ranks_is_no_change(seconds: float, seed: int) -> None:
    """Although a lasting jump of so many is told sooner than one of all."""
    job = Job(
        ranks=8, seed=seed, seconds=500, faults=slower(range(6), "data", 0.5, SINCE + seconds)
    )
    assert told(judged(job)) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("busy", [0.1, 0.5, 4.0])
def test_many_are_told_within_a_minute_however_long_a_step_is(busy: float, seed: int) -> None:
    """A tenth of a step is enough, and what it costs is known at once."""
    since = SINCE + 240 * busy
    faults = tuple(Fault(rank, "data", 0.15, 1, since) for rank in range(6))
    job = Job(ranks=8, seed=seed, seconds=since + 65, busy_seconds=busy, faults=faults)
    said = told(judged(job))

    assert since < said[0][0] <= since + 60
    assert {change.slower_ranks for _, change in said} == {tuple(range(6))}
    assert all(change.step_ratio == pytest.approx(1.14, abs=0.06) for _, change in said)


@pytest.mark.parametrize(("every", "seconds"), [(300, 60.0), (10, 1.5)])
def test_evaluation_is_no_change(every: int, seconds: float) -> None:
    """All ranks evaluate now and then from some moment on, for a minute or for a few steps."""
    job = Job(seed=4, seconds=1200)
    steps = simulate(job)
    for step in steps:
        if step.number % every == 0 and step.end_seconds > SINCE:
            for own in step.stages:
                own["eval"] = seconds

    assert told(judged_steps(job, steps, 5.0)) == []


def test_slower_network_is_a_change_of_sync() -> None:
    """All ranks wait longer for each other than they did, and none of them is late."""
    job = Job(seed=4, ranks=8, seconds=900)
    steps, later = [], 0.0
    for step in simulate(job):
        more = 0.05 * (step.end_seconds + later > SINCE)
        later += more
        waits = [wait + more for wait in step.sync]
        steps.append(replace(step, end_seconds=step.end_seconds + later, sync=waits))
    found = judged_steps(job, steps)

    assert {change.stage for _, change in told(found)} == {"sync"}
    assert told(found)[-1][1].step_ratio == pytest.approx(1.1, abs=0.02)
    assert found.named == set()


@pytest.mark.parametrize(
    ("ranks", "late"),
    [(8, range(5)), (8, range(6)), (64, range(8, 56)), (64, range(48))],
    ids=["five of eight", "three quarters", "six nodes of eight", "three racks"],
)
@pytest.mark.parametrize("seed", range(2))
def test_many_that_become_slower_together_are_named_as_a_set(
    ranks: int, late: range, seed: int
) -> None:
    """So many that the others are the exception: each of them would be its peers' usual pace."""
    faults = tuple(Fault(rank, "data", 0.3, 1, SINCE) for rank in late)
    found = judged(Job(ranks=ranks, seed=seed, seconds=SINCE + 150, faults=faults), 5.0)
    (change,) = found.last.changes

    assert (change.slower, change.slower_ranks) == (len(late), tuple(late)[:MOST_LATE])
    assert change.stage == "data"
    assert change.step_ratio == pytest.approx(1.27, abs=0.03)
    assert found.named == set()


@pytest.mark.parametrize("ranks", [8, 32])
def test_set_that_is_waited_for_is_no_different_rank_in_each_step(ranks: int) -> None:
    """The others wait for one or the other of those that a change names; that is no rotation."""
    late = range(ranks * 3 // 4)
    found = judged(Job(ranks=ranks, seed=3, seconds=600, faults=slower(late, "data", 1.0))).last
    (change,) = found.changes

    assert change.slower == len(late)
    assert not found.late
    # A quarter of the ranks waits for half of each step.
    assert found.gpus_lost["persistent"] == pytest.approx(ranks / 4 * 0.48, rel=0.1)
    assert found.gpus_lost["rotating"] < 0.04 * ranks

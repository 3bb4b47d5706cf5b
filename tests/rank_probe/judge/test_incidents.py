"""The judge names exactly the ranks that are late: their stage, since when, and what they cost."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from rank_probe.judge.judge import Judge
from rank_probe.judge.own_past import MOST_RANKS, Lasted
from rank_probe.judge.verdict import (
    DUTY,
    MILD,
    NO_SYNC,
    NODE,
    PAUSES,
    PERSISTENT,
    UNSYNCED,
    Late,
)
from rankskew.accounting.step import account, kinds
from rankskew.accounting.windows import PlainReduction
from tests.rank_probe.judged import (
    EVERY_SECONDS,
    Fault,
    Job,
    Step,
    judged,
    judged_steps,
    simulate,
    vectors,
)


def job_of(ranks: int, *faults: Fault) -> Job:
    return Job(ranks=ranks, seed=5, faults=faults)


def caused(job: Job, steps: list[Step], rank: int, since: float, until: float) -> float:
    """The GPUs that waited for *rank* by the reference accounting."""
    account_of_rank = account(
        (vectors(job, step) for step in steps if since < step.end_seconds <= until),
        {each: f"g{job.group(each)}" for each in range(job.ranks)},
    )
    return kinds(account_of_rank, {rank})["persistent"] / account_of_rank.seconds


SHAPES = [
    (2, "data", 0.06),
    (2, "forward", 1.0),
    (4, "other", 0.1),
    (4, "optimizer", 0.5),
    (8, "data", 0.25),
    (8, "backward", 0.1),
    (16, "optimizer", 0.1),
    (16, "backward", 1.0),
]


@pytest.mark.parametrize(("ranks", "stage", "ratio"), SHAPES)
def test_persistent_straggler_is_named_with_stage_onset_and_cost(
    ranks: int, stage: str, ratio: float
) -> None:
    """One late rank is named once, nobody else is, and its cost is right from the first on."""
    rank = ranks // 2
    job = Job(ranks=ranks, seed=ranks, seconds=150, faults=(Fault(rank, stage, ratio),))
    steps = simulate(job)
    found = judged_steps(job, steps)
    (incident,) = found.incidents

    assert found.named == {(rank, stage, PERSISTENT)}
    assert incident.named < 50
    assert incident.cleared is None
    assert incident.onset < steps[10].end_seconds  # The first ones are not judged.
    assert incident.first.confidence > 1
    assert incident.first.ratio == pytest.approx(ratio, abs=0.02)
    assert incident.last.gpus[stage] > 0.75 * incident.last.gpus_lost
    for said, until in ((incident.first, incident.named), (incident.last, steps[-1].end_seconds)):
        truth = caused(job, steps, rank, incident.onset, until)
        assert said.gpus_lost == pytest.approx(truth, rel=0.02)


def jobs_that_become_late() -> Iterator[tuple[Job, int]]:
    """Yield jobs, and within how many steps the judge names their last fault."""
    for ranks, ratio in [(2, 0.1), (4, 0.5), (8, 0.1), (32, 0.5)]:
        job = job_of(ranks, Fault(1, "forward", ratio, start_seconds=120))
        yield replace(job, seed=ranks, seconds=180), 30
    for gap in (60, 300):
        again = Fault(3, "data", 0.3, start_seconds=160 + gap)
        job = job_of(8, replace(again, start_seconds=100, end_seconds=160), again)
        yield replace(job, seed=0, seconds=260 + gap), 30
    # Of a minute each, from the start on and later.
    for ranks, ratio, at_start, later in [(4, 0.3, 8, 5), (32, 0.1, 10, 13)]:
        job = replace(job_of(ranks), seed=0, busy_seconds=60, seconds=60 * 66)
        yield replace(job, faults=(Fault(2, "data", ratio),)), at_start
        yield replace(job, faults=(Fault(2, "data", ratio, start_seconds=30 * 66),)), later


@pytest.mark.parametrize(("job", "within"), list(jobs_that_become_late()))
def test_rank_that_becomes_late_is_named_within_a_few_tens_of_steps(job: Job, within: int) -> None:
    """The onset is found to the second or to the step, and the first cost holds no healthy step.

    Of steps that take a minute, a few are enough. A rank that is late again is a new incident, and
    no pause.
    """
    steps = simulate(job)
    found = judged_steps(job, steps)
    incident, fault = found.incidents[-1], job.faults[-1]
    assert fault.rank is not None
    since = fault.start_seconds or incident.onset
    truth = caused(job, steps, fault.rank, incident.onset, incident.named)

    assert found.named == {(fault.rank, fault.stage, PERSISTENT)}
    assert len(found.incidents) == len(job.faults)
    assert incident.onset == pytest.approx(since, abs=max(3, 1.1 * job.busy_seconds))
    named = sum(fault.start_seconds < step.end_seconds <= incident.named for step in steps)
    assert named <= within
    assert incident.first.gpus_lost == pytest.approx(truth, rel=0.1)


ROTATING = Fault(None, "data", 0.5)
# Up to 2 % off the mean for good.
APART = tuple(Fault(rank, "backward", 0.04 * rank / 7) for rank in range(8))
CHECKPOINT = Fault(0, "checkpoint", 16, start_seconds=150, end_seconds=151)
# Each is of 8 ranks, and of 2 where that is said.
HEALTHY = {
    "plain": Job(),
    "noisy steps": Job(stage_noise=0.2, common_noise=0.1, seconds=400),
    "noisy short steps": Job(busy_seconds=0.05, stage_noise=0.2, seconds=60),
    "identical ranks": Job(stage_noise=0, common_noise=0, static_spread=0),
    "rotating": Job(faults=(ROTATING,)),
    "slow communication": Job(communication_ratio=1.0),
    "slow together": Job(slow_together_seconds=120, seconds=300),
    "restart": Job(restart_seconds=120, seconds=300),
    "restart of short steps": Job(busy_seconds=0.05, restart_seconds=30, seconds=90),
    "steps of 7 seconds": Job(busy_seconds=7, seconds=600),
    "noisy steps of 30 seconds": Job(busy_seconds=30, stage_noise=0.2, seconds=1500),
    "rotating steps of a minute": Job(busy_seconds=40, seconds=3600, faults=(ROTATING,)),
    "one checkpoint": Job(faults=(CHECKPOINT,)),
    "one checkpoint of long steps": Job(
        busy_seconds=12, seconds=900, faults=(replace(CHECKPOINT, end_seconds=163),)
    ),
    "apart for good": Job(faults=APART),
    "apart for good in short steps": Job(seconds=60, busy_seconds=0.05, faults=APART),
    # As ranks differ whom nobody waits for.
    "without sync": Job(
        sync_measured=False, faults=(Fault(0, "data", 0.09), Fault(7, "forward", 0.05))
    ),
    # Each fifth or fiftieth batch is slow, however regularly, on any rank.
    "a slow batch of five": Job(seconds=400, faults=(Fault(None, "forward", 1.0, 5),)),
    "a slow batch of fifty": Job(seconds=400, faults=(Fault(None, "forward", 1.0, 50),)),
}
OF_TWO = {
    name: HEALTHY[name]
    for name in ("plain", "noisy steps", "rotating", "restart", "one checkpoint")
} | {
    # Eight late steps in a row come by chance where each step strikes one of two ranks.
    "one of two in turn": Job(
        seconds=1000, busy_seconds=1, stage_noise=0.01, faults=(Fault(None, "forward", 0.5),)
    )
}
QUIET = {name: replace(job, ranks=8, seed=8) for name, job in HEALTHY.items()} | {
    f"{name}, 2 ranks": replace(job, ranks=2, seed=2) for name, job in OF_TWO.items()
}


@pytest.mark.parametrize("job", QUIET.values(), ids=list(QUIET))
def test_nobody_is_named_without_a_straggler(job: Job) -> None:
    """Noise, rotation, slow links, restarts, long steps and small differences are no fault."""
    assert judged(job).named == set()


FROM_60 = Fault(1, "data", 0.5, start_seconds=60.0)


class Expected(NamedTuple):
    """An incident; *onset* and *cleared* in seconds since the job's start, None if it is open."""

    rank: int
    stage: str
    kind: str = PERSISTENT
    onset: float | None = None
    cleared: float | None = None


def incidents() -> Iterator[tuple[Job, list[Expected]]]:
    two = Fault(0, "data", 0.25), Fault(15, "forward", 0.25)
    yield job_of(16, *two), [Expected(0, "data"), Expected(15, "forward")]
    half = range(0, 8, 2)
    job = job_of(8, *(Fault(rank, "backward", 0.25) for rank in half))
    yield job, [Expected(rank, "backward") for rank in half]
    # Of two late ranks only the one that the job waits for is worth a word.
    yield job_of(4, Fault(0, "data", 0.5), Fault(3, "forward", 0.1)), [Expected(0, "data")]
    for ranks, ratio, start in [(16, 0.25, 150.0), (32, 0.1, 0.0)]:
        node = range(8, 16)
        job = job_of(ranks, *(Fault(rank, "forward", ratio, 1, start) for rank in node))
        yield replace(job, seconds=240), [Expected(rank, "forward", NODE) for rank in node]
    # A node of which two ranks are late is no slow node.
    job = job_of(32, Fault(18, "data", 0.2), Fault(21, "forward", 0.1))
    yield replace(job, seconds=400), [Expected(18, "data"), Expected(21, "forward")]
    job = job_of(4, Fault(1, "data", 1.0, 1, 120, 150))
    yield replace(job, seconds=400), [Expected(1, "data", onset=120, cleared=180)]
    job = job_of(8, *(Fault(n, "data", 0.3, 1, 100 + 60 * n, 160 + 60 * n) for n in range(4)))
    moving = [Expected(n, "data", onset=100 + 60 * n, cleared=190 + 60 * n) for n in range(4)]
    yield replace(job, seconds=450), moving
    # Where peers differ too much to say, a rank's own past does.
    job = job_of(8, Fault(1, "backward", 0.15, 1, 560))
    job = replace(job, seed=1, seconds=1150, static_spread=0.1)
    yield job, [Expected(1, "backward", onset=560)]
    # One window of noisy steps below the limit does not show that the rank is back.
    job = job_of(8, Fault(5, "forward", 0.1))
    job = replace(job, seed=2, seconds=1500, busy_seconds=1, stage_noise=0.2, common_noise=0.05)
    yield job, [Expected(5, "forward")]
    yield Job(faults=(Fault(1, "forward", 0.5, 1, 0, 60), FROM_60)), [Expected(1, "forward")]
    job = job_of(8, Fault(3, "data", 0.3, 1, 300, 500))
    unsynced = Expected(3, "data", UNSYNCED, 300, 508)
    yield replace(job, seconds=700, sync_measured=False), [unsynced]
    yield replace(job_of(16, Fault(3, "data", 0.03)), seconds=500), [Expected(3, "data", MILD)]
    job = job_of(8, Fault(1, "data", 6, every=30), Fault(6, "other", 8, every=47))
    yield replace(job, seconds=600), [Expected(1, "data", PAUSES), Expected(6, "other", PAUSES)]
    job = job_of(8, Fault(1, "checkpoint", 8, every=40), Fault(6, "forward", 0.25))
    pausing = Expected(1, "checkpoint", DUTY)
    yield replace(job, seconds=400), [pausing, Expected(6, "forward")]
    # A late rank is not named a second time for its pauses.
    job = job_of(8, Fault(1, "forward", 0.25), Fault(1, "checkpoint", 4, every=40))
    yield job, [Expected(1, "forward")]
    # The accuracy benchmark's steps of two seconds, a twentieth late for 20 of them or more.
    steps = Job(seed=1, seconds=400, busy_seconds=1.9, stage_noise=0.02, common_noise=0.01)
    for ranks, stage in ((2, "optimizer"), (4, "data"), (8, "backward")):
        late = Fault(ranks // 2, stage, 0.053, 1, 125)
        yield replace(steps, ranks=ranks, faults=(late,)), [Expected(ranks // 2, stage)]
        late = replace(late, end_seconds=125 + 20 * 2.08)
        expected = Expected(ranks // 2, stage, cleared=196)
        yield replace(steps, ranks=ranks, faults=(late,)), [expected]


@pytest.mark.parametrize(("job", "expected"), list(incidents()))
def test_each_lateness_is_one_incident(job: Job, expected: list[Expected]) -> None:
    """It has one rank, stage and kind, one onset, and an end within a minute of the fault's."""
    found = sorted(judged(job).incidents, key=lambda each: each.rank)

    assert [(each.rank, each.stage, each.kind) for each in found] == [each[:3] for each in expected]
    for incident, (*_, onset, cleared) in zip(found, expected, strict=True):
        if onset is not None:
            assert incident.onset == pytest.approx(onset, abs=3)
        assert incident.cleared == (None if cleared is None else pytest.approx(cleared, abs=15))


def test_rank_at_the_threshold_does_not_flap() -> None:
    """4 % late for 20 minutes is one incident at most, and then to the end."""
    job = Job(ranks=8, seed=11, seconds=1200, faults=(Fault(5, "forward", 0.04),))
    incidents = judged(job, every_seconds=4.0).incidents

    assert [(each.rank, each.stage, each.cleared) for each in incidents] in (
        [],
        [(5, "forward", None)],
    )


def test_two_late_ranks_share_the_cost_by_their_excess() -> None:
    """Of two late ranks the later one alone is charged for what it has more than the other."""
    found = judged(Job(ranks=8, seed=5, faults=(Fault(0, "data", 0.5), Fault(7, "data", 0.4))))
    cost = {each.rank: each.gpus_lost for each in found.last.late}

    # Six wait 0.4 for two; then seven wait 0.1 for one.
    assert cost[0] / cost[7] == pytest.approx((6 * 0.4 / 2 + 7 * 0.1) / (6 * 0.4 / 2), rel=0.05)


def test_what_had_no_name_may_turn_out_to_be_data() -> None:
    """The probe of a rank that reads its own stream finds that out while the rank is late."""
    unnamed = Fault(1, "other", 0.5, end_seconds=60.0)
    before, after = judged(Job(ranks=4, faults=(unnamed, FROM_60))).incidents

    assert (before.stage, after.stage) == ("other", "data")
    assert after.onset == pytest.approx(before.onset, abs=5)
    # A page waits for it: with the whole cost in one stage.
    assert after.named - 60 <= 3 * EVERY_SECONDS
    assert set(after.first.gpus) == {"data"}


def test_rank_that_catches_up_slowly_is_let_go() -> None:
    """It never falls far at once, and is named no longer while it is 2 % behind, or not at all."""
    minute = 1800.0
    fading = [
        Fault(5, "forward", 0.06 * (1 - n / 30), 1, (10 + n) * minute, (11 + n) * minute)
        for n in range(30)
    ]
    job = Job(ranks=8, seed=4, seconds=60 * minute, busy_seconds=30, faults=tuple(fading))
    found = judged(job, every_seconds=120)
    (incident,) = (each for each in found.incidents if each.kind == PERSISTENT)

    assert incident.cleared is not None
    assert 20 * minute < incident.cleared < 33 * minute


NODE_RANKS = range(16, 24)


def test_node_that_drifts_is_named_once_with_its_ranks() -> None:
    """From the first minute to the end, although no single rank stands out all the time.

    From 300 s on it is 3 to 5 % slower, now more, now less, and each rank by another share.
    """
    draw = Random(0)
    drifting = [
        Fault(rank, "forward", ratio + draw.uniform(-0.01, 0.01), 1, begin, begin + 60)
        for begin in range(300, 900, 60)
        for ratio in [0.04 + 0.01 * math.sin(begin / 200)]
        for rank in NODE_RANKS
    ]
    found = judged(Job(ranks=24, seconds=900, faults=tuple(drifting)))
    named = [{each.rank for each in verdict.late} for _, verdict in found.verdicts if verdict.late]

    assert {each.kind for each in found.incidents} == {NODE}
    assert set.union(*named) == set(NODE_RANKS)
    assert min(each.named for each in found.incidents) < 345
    assert len(found.incidents) <= len(NODE_RANKS) + 4
    settled = [ranks for ranks in named[10:] if len(ranks) < len(NODE_RANKS) - 1]
    assert not settled


def test_node_that_catches_up_slowly_is_let_go_as_a_whole() -> None:
    """Its ranks are those of a node to the end, and none comes and goes meanwhile."""
    fading = [
        Fault(rank, "forward", 0.08 * (1 - n / 20), 1, 300 + 60 * n, 360 + 60 * n)
        for n in range(20)
        for rank in NODE_RANKS
    ]
    job = Job(ranks=24, seed=0, seconds=1600, stage_noise=0.1, faults=tuple(fading))
    found = judged(job)

    assert {each.kind for each in found.incidents} == {NODE}
    assert len(found.incidents) <= len(NODE_RANKS) + 2
    assert max(each.cleared or math.inf for each in found.incidents) < 1500


def test_rank_is_late_beyond_its_node() -> None:
    """It is named by itself, and the others stay those of their node."""
    slow = [Fault(rank, "forward", 0.06, 1, 100) for rank in NODE_RANKS]
    job = Job(ranks=24, seed=2, seconds=400, faults=(*slow, Fault(18, "data", 0.25, 1, 200)))
    found = judged(job)

    kinds = {each.rank: each.kind for each in found.last.late}
    assert kinds == {rank: NODE if rank != 18 else PERSISTENT for rank in NODE_RANKS}


# ---- Without measured waits: by a rank's own past ------------------------------------------------

More = Callable[[int, int], float]


class Told(NamedTuple):
    """What was said after each step, and who was slow when, as known at the end."""

    said: list[tuple[Late, ...]]
    ended: list[Lasted]


def told(more: More, steps: int = 200, ranks: int = 8) -> Told:
    """Judge a job after every step of 10 s; *more* (rank, step) is a share of it, in `backward`.

    The noise has heavy tails (Student's t with three degrees of freedom), and all ranks drift.
    """
    draw = Random(0)
    reduction = PlainReduction(dict.fromkeys(range(ranks), "all"), {})
    judge = Judge(reduction)
    said = []
    for step in range(steps):
        common = 10 * (1 + 0.2 * step / steps) * draw.gauss(1.0, 0.02)
        row = {rank: spent(draw, common, more(rank, step)) for rank in range(ranks)}
        at = (step + 1) * 10.0
        leader = reduction.add(step, row, at)
        verdict = judge.judge(reduction.mark(at), [leader], step=step)
        said.append(verdict.late)
    assert verdict.reason == NO_SYNC
    return Told(said, list(judge.ended))


def spent(draw: Random, common: float, more: float) -> dict[str, float]:
    heavy = draw.gauss(0, 1) / max(draw.gammavariate(1.5, 2 / 3), 0.05) ** 0.5
    own = common * max(0.5, 1 + 0.02 * heavy)
    return {"forward": 0.4 * own, "backward": (0.6 + more) * own}


def test_bump_of_ten_steps_is_told_with_onset_and_end() -> None:
    """15 % for ten steps, in the middle of a run whose ranks always differ by a tenth."""
    found = told(lambda rank, step: 0.02 * rank + 0.15 * (rank == 3 and 100 <= step < 110))
    (one,) = found.ended
    names = {(each.rank, each.stage, each.kind) for late in found.said for each in late}

    assert names == {(3, "backward", UNSYNCED)}
    assert (one.onset, one.end) == pytest.approx((1000, 1100), abs=20)
    assert not any(found.said[:105])
    assert not found.said[-1]


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        (lambda rank, _: 0.1 * (rank == 2), 300),
        # Workers on shares of GPUs: the slowest is far from the fastest, but not from the next.
        (lambda rank, _: 0.1 * rank, 60),
    ],
    ids=["one", "all"],
)
def test_ranks_that_were_always_apart_stay_quiet(more: More, steps: int) -> None:
    """While all drift, and noise has heavy tails."""
    found = told(more, steps)

    assert not any(found.said)
    assert not found.ended


def test_largest_lasting_excess_is_first() -> None:
    """9 % for hours comes before 20 % for minutes."""
    found = told(
        lambda rank, step: (
            0.09 * (rank == 5 and step >= 150) + 0.2 * (rank == 1 and 580 <= step < 599)
        ),
        steps=600,
    )

    assert [late.rank for late in found.said[-1]] == [5, 1]
    assert found.said[-1][0].ratio == pytest.approx(0.09, abs=0.02)
    assert all(late.has_risen for late in found.said[-1])
    assert found.said[-1][0].since_seconds == pytest.approx(4500, abs=50)


def test_rank_that_was_always_far_apart_is_told() -> None:
    """Half as slow again as all others, from the first step on, is no matter of habit."""
    found = told(lambda rank, step: 0.5 * (rank == 4), steps=60)

    assert [(late.rank, late.kind) for late in found.said[-1]] == [(4, UNSYNCED)]
    assert not found.said[-1][0].has_risen
    assert found.said[-1][0].ratio == pytest.approx(0.5, abs=0.05)


def test_short_gap_does_not_make_two_of_one() -> None:
    found = told(lambda rank, step: 0.2 * (rank == 6 and 100 <= step < 250 and step not in GAP))

    assert not found.ended
    assert {round(200 - late.since_seconds / 10) for late in found.said[-1]} == {100}


GAP = range(150, 160)


def test_second_time_is_compared_with_the_healthy_past() -> None:
    """What a rank needed while it was slow does not count as its past."""
    found = told(
        lambda rank, step: 0.2 * (rank == 6 and (60 <= step < 160 or 200 <= step < 220)), steps=300
    )

    assert [each.rank for each in found.ended] == [6, 6]
    assert [each.onset for each in found.ended] == pytest.approx([600, 2000], abs=20)


def test_slower_one_of_two_is_told() -> None:
    found = told(lambda rank, step: 0.1 * rank + 0.2 * (rank == 0 and step >= 100), ranks=2)

    assert [late.rank for late in found.said[-1]] == [0]


@pytest.mark.parametrize(("more_ranks", "named"), [(0, {3}), (1, set())])
def test_job_of_too_many_ranks_is_not_looked_at(more_ranks: int, named: set[int]) -> None:
    """Rank 0 would spend too much time on it."""
    late = told(
        lambda rank, step: 0.5 * (rank == 3 and step >= 30),
        steps=45,
        ranks=MOST_RANKS + more_ranks,
    )

    assert {each.rank for each in late.said[-1]} == named

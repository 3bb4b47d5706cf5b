"""The judge names exactly the ranks that are late: their stage, since when, and what they cost."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from rank_probe.judge.judge import Judge
from rank_probe.judge.own_past import MOST_RANKS, Lasted
from rank_probe.judge.verdict import DUTY, MILD, NO_SYNC, NODE, PAUSES, PERSISTENT, UNSYNCED, Late
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


def late_jobs() -> Iterator[tuple[Job, int]]:
    """Yield jobs with a late rank, and within how many steps the judge names their last fault."""
    for ranks, stage, ratio in [(2, "data", 0.06), (4, "optimizer", 0.5), (16, "backward", 1.0)]:
        yield Job(ranks, seed=ranks, seconds=120, faults=(Fault(1, stage, ratio),)), 60
    for ranks in (2, 8):
        late = Fault(1, "forward", 0.1, start_seconds=90)
        yield Job(ranks, seed=ranks, seconds=150, faults=(late,)), 30
    again = Fault(3, "data", 0.3, start_seconds=160)
    before = replace(again, start_seconds=60, end_seconds=100)
    yield Job(faults=(before, again), seconds=220), 30
    # Of a minute each, from the start on and later.
    minutes = Job(busy_seconds=60, seconds=60 * 50)
    yield replace(minutes, faults=(Fault(2, "data", 0.3),)), 8
    yield replace(minutes, faults=(Fault(2, "data", 0.3, start_seconds=30 * 66),)), 5


@pytest.mark.parametrize(("job", "within"), list(late_jobs()))
def test_late_rank_is_named_within_a_few_tens_of_steps(job: Job, within: int) -> None:
    """The first and last verdict have its stage, onset, and cost by the reference accounting.

    No other rank is named. A few steps are enough if each takes a minute. A rank that is late again
    is a new incident, not a pause.
    """
    steps = simulate(job)
    found = judged_steps(job, steps)
    incident, fault = found.incidents[-1], job.faults[-1]
    assert fault.rank is not None
    since = max(fault.start_seconds, steps[1].end_seconds)  # Before that, it is warming up.

    assert found.named == {(fault.rank, fault.stage, PERSISTENT)}
    assert len(found.incidents) == len(job.faults)
    assert incident.cleared is None
    assert sum(since < step.end_seconds <= incident.named for step in steps) <= within
    assert incident.onset == pytest.approx(since, abs=max(4, 1.1 * job.busy_seconds))
    assert incident.first.confidence > 1
    assert incident.last.ratio == pytest.approx(fault.ratio, abs=0.02)
    assert incident.last.gpus[fault.stage] > 0.75 * incident.last.gpus_lost
    at_first = caused(job, steps, fault.rank, incident.onset, incident.named)
    assert incident.first.gpus_lost == pytest.approx(at_first, rel=0.1)
    at_last = caused(job, steps, fault.rank, incident.onset, steps[-1].end_seconds)
    assert incident.last.gpus_lost == pytest.approx(at_last, rel=0.02)


ROTATING, IN_TURN = Fault(None, "data", 0.5), Fault(None, "forward", 0.5)
# Up to 2 % off the mean for good.
APART = tuple(Fault(rank, "backward", 0.04 * rank / 7) for rank in range(8))
CHECKPOINT = Fault(0, "checkpoint", 16, start_seconds=150, end_seconds=151)
HEALTHY = {
    "noisy steps": Job(8, seed=8, stage_noise=0.2, common_noise=0.1),
    "noisy short steps": Job(8, seed=8, busy_seconds=0.05, stage_noise=0.2, seconds=60),
    "identical ranks": Job(stage_noise=0, common_noise=0, static_spread=0),
    "in turn": Job(8, seed=8, faults=(ROTATING,)),
    "slow communication": Job(communication_ratio=1.0),
    "slow together": Job(slow_together_seconds=120),
    "restart": Job(restart_seconds=120),
    "steps of 30 seconds": Job(8, seed=8, busy_seconds=30, stage_noise=0.2, seconds=1500),
    "one checkpoint": Job(8, seed=8, faults=(CHECKPOINT,)),
    "one checkpoint of long steps": Job(
        8, seed=8, busy_seconds=12, seconds=900, faults=(replace(CHECKPOINT, end_seconds=163),)
    ),
    "apart for good": Job(8, seed=8, faults=APART),
    # It takes five minutes to be sure of so little.
    "a rank slower by 4.5 %": Job(8, seed=8, faults=(Fault(5, "forward", 0.045),)),
    # As ranks differ whom nobody waits for.
    "without sync": Job(
        8, sync_measured=False, faults=(Fault(0, "data", 0.09), Fault(7, "forward", 0.05))
    ),
    # Each fifth batch is slow, however regularly, on any rank.
    "a slow batch of five": Job(8, seed=8, faults=(Fault(None, "forward", 1.0, 5),)),
    "two ranks": Job(2, seed=2),
    # Eight late steps in a row come by chance where each step strikes one of two ranks.
    "one of two in turn": Job(
        2, seed=2, seconds=1000, busy_seconds=1, stage_noise=0.01, faults=(IN_TURN,)
    ),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_nobody_is_named_without_a_straggler(case: str) -> None:
    """Noise, rotation, slow links, restarts, long steps and small differences are no fault."""
    assert judged(HEALTHY[case]).named == set()


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
    for node in (range(8, 16), range(6, 8)):
        job = job_of(node.stop, *(Fault(rank, "forward", 0.25, 1, 100) for rank in node))
        job = replace(job, seconds=180, ranks_per_node=len(node))
        yield job, [Expected(rank, "forward", NODE) for rank in node]
    # A node of which two ranks are late is no slow node.
    job = job_of(24, Fault(18, "data", 0.2), Fault(21, "forward", 0.1))
    yield job, [Expected(18, "data"), Expected(21, "forward")]
    job = job_of(4, Fault(1, "data", 1.0, 1, 120, 150))
    yield job, [Expected(1, "data", onset=120, cleared=180)]
    # Where peers differ too much to say, a rank's own past does.
    job = job_of(8, Fault(1, "backward", 0.15, 1, 560))
    yield replace(job, seed=1, seconds=800, static_spread=0.1), [Expected(1, "backward", onset=560)]
    # That ranks were late in turn before is no noise of one that is late all the time.
    job = job_of(8, replace(ROTATING, end_seconds=160), Fault(3, "data", 0.08, 1, 160))
    yield replace(job, seconds=195), [Expected(3, "data")]
    # One window of noisy steps below the limit does not show that the rank is back.
    job = job_of(8, Fault(5, "forward", 0.1))
    job = replace(job, seed=2, seconds=800, busy_seconds=1, stage_noise=0.2, common_noise=0.05)
    yield job, [Expected(5, "forward")]
    yield Job(faults=(Fault(1, "forward", 0.5, 1, 0, 60), FROM_60)), [Expected(1, "forward")]
    job = job_of(8, Fault(3, "data", 0.3, 1, 200, 400))
    unsynced = Expected(3, "data", UNSYNCED, 200, 408)
    yield replace(job, seconds=500, sync_measured=False), [unsynced]
    job = job_of(8, Fault(3, "data", 0.03), Fault(3, "data", 0.2, 1, 380))
    mild = Expected(3, "data", MILD, cleared=388)
    yield replace(job, seconds=440), [mild, Expected(3, "data", onset=380)]
    job = job_of(8, Fault(1, "data", 6, every=30), Fault(6, "other", 8, every=47))
    yield replace(job, seconds=300), [Expected(1, "data", PAUSES), Expected(6, "other", PAUSES)]
    # Three intervals after the last pause the rank is no longer late.
    job = Job(seed=2, seconds=400, faults=(Fault(2, "data", 8, 40, 0, 250),))
    yield job, [Expected(2, "data", PAUSES, cleared=318)]
    job = job_of(8, Fault(1, "checkpoint", 8, every=40), Fault(6, "forward", 0.25))
    yield job, [Expected(1, "checkpoint", DUTY), Expected(6, "forward")]
    # A late rank is not named a second time for its pauses.
    job = job_of(8, Fault(1, "forward", 0.25), Fault(1, "checkpoint", 4, every=40))
    yield job, [Expected(1, "forward")]
    # Steps of two seconds, a twentieth late for 20 of them.
    late = Fault(2, "data", 0.053, 1, 125, 125 + 20 * 2.08)
    job = Job(seed=1, seconds=250, busy_seconds=1.9, stage_noise=0.02, common_noise=0.01)
    yield replace(job, faults=(late,)), [Expected(2, "data", cleared=196)]


@pytest.mark.parametrize(("job", "expected"), list(incidents()))
def test_each_lateness_is_one_incident(job: Job, expected: list[Expected]) -> None:
    """It has one rank, stage and kind, one onset, and an end within a minute of the fault's."""
    found = sorted(judged(job).incidents, key=lambda each: each.rank)

    assert [(each.rank, each.stage, each.kind) for each in found] == [each[:3] for each in expected]
    for incident, (*_, onset, cleared) in zip(found, expected, strict=True):
        if onset is not None:
            assert incident.onset == pytest.approx(onset, abs=3)
        assert incident.cleared == (None if cleared is None else pytest.approx(cleared, abs=15))


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
    minute = 600.0
    fading = [
        Fault(3, "forward", 0.06 * (1 - n / 30), 1, (10 + n) * minute, (11 + n) * minute)
        for n in range(30)
    ]
    job = Job(seed=4, seconds=50 * minute, busy_seconds=20, faults=tuple(fading))
    found = judged(job, every_seconds=60)
    (incident,) = (each for each in found.incidents if each.kind == PERSISTENT)

    assert incident.cleared is not None
    assert 20 * minute < incident.cleared < 33 * minute


NODE_RANKS = range(8, 16)


def test_node_that_drifts_is_named_once_with_its_ranks() -> None:
    """From the first minute to the end, although no single rank stands out all the time.

    From 200 s on it is 3 to 5 % slower, now more, now less, and each rank by another share.
    """
    draw = Random(0)
    drifting = [
        Fault(rank, "forward", ratio + draw.uniform(-0.01, 0.01), 1, begin, begin + 60)
        for begin in range(200, 560, 60)
        for ratio in [0.04 + 0.01 * math.sin(begin / 200)]
        for rank in NODE_RANKS
    ]
    found = judged(Job(ranks=16, seconds=560, faults=tuple(drifting)))
    named = [{each.rank for each in verdict.late} for _, verdict in found.verdicts if verdict.late]

    assert {each.kind for each in found.incidents} == {NODE}
    assert set.union(*named) == set(NODE_RANKS)
    assert min(each.named for each in found.incidents) < 245
    assert len(found.incidents) <= len(NODE_RANKS) + 4
    settled = [ranks for ranks in named[10:] if len(ranks) < len(NODE_RANKS) - 1]
    assert not settled


def test_node_that_is_always_late_is_named_when_no_drift_explains_it() -> None:
    """In the first minutes it may have drifted by as much as 6 %, but not for an hour."""
    slow = tuple(Fault(rank, "forward", 0.06) for rank in NODE_RANKS)
    found = judged(Job(ranks=16, seed=2, busy_seconds=20, seconds=4800, faults=slow))
    mild = {each.rank: each for each in found.incidents if each.kind == MILD}

    assert {*mild} == set(NODE_RANKS)
    assert max(each.named for each in mild.values()) < 1200
    assert {(each.rank, each.kind) for each in found.last.late} == {(r, NODE) for r in NODE_RANKS}


def test_all_late_ranks_are_found_however_many_there_are() -> None:
    """Also those that are never among the furthest; the first 24 wait for these."""
    faults = tuple(Fault(rank, "data", 0.25 + rank / 2000) for rank in range(80))
    job = Job(160, stage_noise=0.0, seconds=60, faults=faults)
    racks = {rank: {"rack": "r1" if 24 <= rank < 80 else "r2"} for rank in range(160)}
    _, verdict = judged(job, facts=racks).verdicts[-1]

    assert [(each.ranks, each.in_common) for each in verdict.together] == [(56, "rack r1")]


def test_rank_is_late_beyond_its_node() -> None:
    """It is named by itself, and the others stay those of their node."""
    slow = [Fault(rank, "forward", 0.06, 1, 100) for rank in NODE_RANKS]
    job = Job(ranks=16, seed=2, seconds=260, faults=(*slow, Fault(10, "data", 0.25, 1, 180)))
    found = judged(job)

    kinds = {each.rank: each.kind for each in found.last.late}
    assert kinds == {rank: NODE if rank != 10 else PERSISTENT for rank in NODE_RANKS}


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
    assert (verdict.reason, verdict.gpus_lost) == (NO_SYNC, {})
    return Told(said, list(judge.ended))


def spent(draw: Random, common: float, more: float) -> dict[str, float]:
    heavy = draw.gauss(0, 1) / max(draw.gammavariate(1.5, 2 / 3), 0.05) ** 0.5
    own = common * max(0.5, 1 + 0.02 * heavy)
    return {"forward": 0.4 * own, "backward": (0.6 + more) * own}


class Past(NamedTuple):
    """A job, and who was slow in it from which step to which, and is since which, by how much."""

    more: More
    steps: int = 200
    ranks: int = 8
    was: Sequence[tuple[int, int, int]] = ()
    since: Sequence[tuple[int, int, float]] = ()


def between(rank: int, first: int, end: int, ratio: float) -> More:
    """Return what makes *rank* slower by *ratio* from one step to another."""
    return lambda at, step: ratio * (at == rank and first <= step < end)


def both(one: More, other: More) -> More:
    return lambda rank, step: one(rank, step) + other(rank, step)


def test_hiccup_makes_no_rank_one_of_those_that_are_late_on_its_node() -> None:
    """Five of its eight are late, step after step."""
    late = [Fault(rank, "forward", 0.1, 1, 100) for rank in range(8, 13)]
    hiccup = Fault(14, "other", 2.0, 1, 200, 200.5)
    found = judged(Job(16, 2, (*late, hiccup), seconds=320))

    assert {rank for rank, *_ in found.named} == set(range(8, 13))


OWN_PAST = {
    "always one apart": Past(between(2, 0, 300, 0.1), steps=300),
    "always all apart": Past(lambda rank, _: 0.1 * rank, steps=60),
    # Workers on shares of GPUs: the slowest is far from the fastest, but not from the next.
    "a bump of ten steps": Past(
        both(lambda rank, _: 0.02 * rank, between(3, 100, 110, 0.15)), was=[(3, 100, 110)]
    ),
    # Half as slow again as all others, from the first step on, is no matter of habit.
    "far apart from the first step on": Past(between(4, 0, 60, 0.5), steps=60, since=[(4, 0, 0.5)]),
    # What a rank needed while it was slow does not count as its past.
    "twice": Past(
        both(between(6, 60, 160, 0.2), between(6, 200, 220, 0.2)),
        steps=260,
        was=[(6, 60, 160), (6, 200, 220)],
    ),
    "with a short gap": Past(
        both(between(6, 100, 150, 0.2), between(6, 160, 250, 0.2)), since=[(6, 100, 0.2)]
    ),
    # 9 % for long comes before 20 % for minutes.
    "two, the one that lost more first": Past(
        both(between(5, 90, 250, 0.09), between(1, 230, 250, 0.2)),
        steps=250,
        since=[(5, 90, 0.09), (1, 230, 0.2)],
    ),
    "the slower one of two": Past(
        both(lambda rank, _: 0.1 * rank, between(0, 100, 200, 0.2)), ranks=2, since=[(0, 100, 0.2)]
    ),
    "of as many ranks as are looked at": Past(
        between(3, 30, 45, 0.5), steps=45, ranks=MOST_RANKS, since=[(3, 30, 0.5)]
    ),
    # Rank 0 would spend too much time on it.
    "of too many ranks": Past(between(3, 30, 45, 0.5), steps=45, ranks=MOST_RANKS + 1),
}


@pytest.mark.parametrize("case", OWN_PAST)
def test_rank_is_compared_with_its_own_past_where_no_wait_is_measured(case: str) -> None:
    """Who is slower than it was, since when and until when; and nobody else, nor any before.

    All drift, noise has heavy tails, and no cost is known.
    """
    job = OWN_PAST[case]
    found = told(job.more, job.steps, job.ranks)
    slow = {(rank, "backward", UNSYNCED) for rank, *_ in (*job.was, *job.since)}
    begin = min((since for _, since, _ in (*job.was, *job.since)), default=job.steps)

    assert {(each.rank, each.stage, each.kind) for said in found.said for each in said} == slow
    assert not any(found.said[:begin])
    assert [each.rank for each in found.ended] == [rank for rank, *_ in job.was]
    for ended, (_, *times) in zip(found.ended, job.was, strict=True):
        assert [ended.onset / 10, ended.end / 10] == pytest.approx(times, abs=3)
    assert [each.rank for each in found.said[-1]] == [rank for rank, *_ in job.since]
    for late, (_, since, ratio) in zip(found.said[-1], job.since, strict=True):
        assert late.has_risen == (since > 0)
        assert job.steps - late.since_seconds / 10 == pytest.approx(since, abs=8)
        assert late.ratio == pytest.approx(ratio, abs=0.05)
        assert late.gpus_lost == 0

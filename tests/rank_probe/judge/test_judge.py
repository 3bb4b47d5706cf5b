"""What the judge says of a job: GPUs lost by kind and stage, the slowdown, and how that travels."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any

import pytest

from benchmarks.accuracy.false_names import correlated, nodes_drift, told
from rank_probe.judge.bins import FEWEST_STRETCHES, deviation_of, middle_mean
from rank_probe.judge.evidence import MOST_TIMES
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import (
    DUTY,
    LATE_KINDS,
    LOST_KINDS,
    MILD,
    MOST_LATE,
    NO_BUSY_TIME,
    NO_PEERS,
    OVERTAKES,
    PERSISTENT,
    REASONS,
    UNSYNCED,
    WARMING_UP,
    from_json,
    late_stage,
    settled,
)
from rank_probe.judge.windows import Mark, MarkHistory
from rank_probe.wire.stages import STAGES
from rankskew.accounting.windows import PlainReduction
from tests.exporter.snapshots import late, verdict
from tests.rank_probe.judged import (
    Fault,
    Job,
    Step,
    gpus_lost,
    judged,
    judged_steps,
    mean_step_seconds,
    simulate,
)

LATE = Fault(1, "data", 0.25)


def waiting(steps: list[Step], seconds: float = 60.0) -> float:
    """The GPUs that waited in the last *seconds*, as was measured."""
    window = [step for step in steps if step.end_seconds > steps[-1].end_seconds - seconds]
    lengths = sum(step.busy[0] + step.sync[0] for step in window)
    return sum(sum(step.sync) for step in window) / lengths


@pytest.mark.parametrize(("ranks", "busy_seconds"), [(8, 0.5), (4, 40.0)])
def test_rotating_loss_is_counted_by_stage_without_a_name(ranks: int, busy_seconds: float) -> None:
    """A loss with no stable leader is seen in full, in its stage, and what is noise of it."""
    job = Job(ranks=ranks, seed=5, busy_seconds=busy_seconds, seconds=300 * busy_seconds)
    steps = simulate(replace(job, faults=(ROTATING,)))
    found = judged_steps(job, steps)
    window = max(60.0, 20 * mean_step_seconds(steps))
    truth = gpus_lost(steps, steps[-1].end_seconds, window)

    assert found.named == set()
    lost = found.last.gpus_lost
    assert lost["rotating"] + lost["noise"] == pytest.approx(truth, rel=0.1)
    assert found.last.rotating["data"] > 0.8 * lost["rotating"] > 0.6 * truth
    assert found.last.slowdown == 1


def test_unequal_groups_are_nobodys_fault() -> None:
    """A heavier pipeline stage costs GPUs of the kind `group`, and names nobody.

    A late rank in the lighter group paces nobody and is not named. A late rank in the heavier group
    is charged for what it adds to that group's time.
    """
    unequal = Job(ranks=8, seed=5, group_work=(1.0, 1.3))
    found = judged(unequal)
    assert found.named == set()
    assert found.last.ranks == {"g0": 4, "g1": 4}
    # Half of the ranks wait 0.3 of a step for the other half.
    assert found.last.gpus_lost["group"] == pytest.approx(4 * 0.3 / 1.36, rel=0.1)

    lighter = Job(ranks=4, seed=5, group_work=(1.0, 1.5), faults=(replace(LATE, rank=0),))
    assert judged(lighter).named == set()

    found = judged(replace(unequal, faults=(replace(LATE, rank=7),)))
    assert found.named == {(7, "data", PERSISTENT)}
    # Seven ranks wait a quarter of a step longer.
    (late,) = found.last.late
    assert late.gpus_lost == pytest.approx(7 * 0.25 / 1.61, rel=0.1)
    assert late.peer_group == "g1"


ROTATING = Fault(None, "data", 0.5)
UNEQUAL = Job(ranks=8, group_work=(1.0, 1.3))
HALF = tuple(replace(LATE, rank=rank) for rank in range(0, 8, 2))
JOBS = {
    "nobody": Job(ranks=8),
    "one of two": Job(ranks=2, faults=(LATE,)),
    "two unlike": Job(ranks=8, faults=(LATE, replace(LATE, rank=6, ratio=0.4))),
    "half": Job(ranks=8, stage_noise=0.01, faults=HALF),
    "heavier group": replace(UNEQUAL, faults=(replace(LATE, rank=7),)),
    "lighter group": replace(UNEQUAL, faults=(Fault(0, "data", 0.5),)),
    "long wire": Job(ranks=8, communication_ratio=1.0, faults=(replace(LATE, ratio=0.5),)),
    "one late, others in turn": Job(ranks=8, faults=(ROTATING, LATE)),
    "from 90 s on": Job(seconds=180, faults=(replace(LATE, ratio=0.5, start_seconds=90),)),
    "pauses": Job(ranks=8, seconds=300, faults=(Fault(0, "checkpoint", 8, every=40),)),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_gpu_that_waits_is_charged_and_the_slowdown_is_the_late_ranks(name: str) -> None:
    """Kinds add up to all waiting; steps are so many times longer than without the late ranks."""
    job = replace(JOBS[name], seed=7)
    steps, healthy = simulate(job), simulate(replace(job, faults=()))
    verdicts = [said for _, said in judged_steps(job, steps).verdicts]
    found, lost = verdicts[-1], verdicts[-1].gpus_lost
    since = max([20.0, *(fault.start_seconds for fault in job.faults)])  # Compiled by then.
    truth = mean_step_seconds(steps, since) / mean_step_seconds(healthy, since)
    window = max(60.0, 20 * mean_step_seconds(steps))

    if ROTATING not in job.faults:  # Those who are late in turn have their share in it.
        assert found.slowdown == pytest.approx(truth, rel=0.03)
    # The late ranks' cost is a mean since they are late: another sample of the same noise.
    if name != "pauses":  # The last minute may have more of them than the mean.
        assert sum(lost.values()) == pytest.approx(waiting(steps, window), rel=0.05)
    assert lost["persistent"] == pytest.approx(sum(each.gpus_lost for each in found.late))
    assert lost["rotating"] == pytest.approx(sum(found.rotating.values()))
    recent = steps[-1].end_seconds - window
    assert found.step_seconds == pytest.approx(mean_step_seconds(steps, recent), rel=0.1)
    for said in verdicts:
        numbers = [*said.gpus_lost.values(), *said.rotating.values()]
        for each in said.late:
            numbers += [*each.gpus.values(), each.since_seconds, each.steps, each.confidence]
            assert each.gpus
            assert each.ratio > 0
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert said.slowdown is None or said.slowdown >= 1


def test_only_the_costliest_are_told() -> None:
    """Of 40 late ranks the same 32 are named, and keep their places; what others cost rotates."""
    late = range(12, 52)
    faults = tuple(Fault(rank, "data", 0.25) for rank in late)
    job = Job(ranks=64, seed=2, seconds=90, faults=faults)
    steps = simulate(job)
    run = judged_steps(job, steps)
    found = run.last
    costs = [each.gpus_lost for each in found.late]

    assert len(costs) == len(run.incidents) == MOST_LATE  # The same ones all the time.
    orders = {tuple(each.rank for each in said.late) for _, said in run.verdicts if said.late}
    assert all(later <= OVERTAKES * earlier for earlier, later in pairwise(costs))
    assert len(orders) < 8  # Of thirty verdicts: the first costs are of a few steps.
    assert {each.rank for each in found.late} <= set(late)
    assert sum(found.gpus_lost.values()) == pytest.approx(waiting(steps), rel=0.05)


@pytest.mark.parametrize(
    ("costs", "after"),
    [
        *(((), []), ((0, 0), [0, 0]), ((0, 1), [1, 0])),
        # Exactly a third more is not more than that.
        *(((3, 4), [3, 4]), ((3, 4.01), [4.01, 3]), ((2.5, 3), [2.5, 3]), ((2.2, 3), [3, 2.2])),
        # It comes before the first one that costs so much less, whoever is in between.
        *(((10, 8, 12), [10, 12, 8]), ((9, 10, 13), [13, 9, 10]), ((5, 5, 6, 8), [8, 5, 5, 6])),
    ],
)
def test_place_is_kept_unless_another_costs_a_third_more(
    costs: Sequence[float], after: list[float]
) -> None:
    """So that two ranks that cost about as much do not change places at each look."""
    assert settled(costs, lambda cost: (cost,)) == after


def test_nothing_is_said_until_twenty_steps_after_the_first_five() -> None:
    """The first steps compile and fill caches; then what a rank does takes a few tens to show."""
    job = Job(seconds=40, faults=(LATE,))
    found = judged_steps(job, simulate(job), every_seconds=0.0)
    young = [verdict for _, verdict in found.verdicts if verdict.reason == WARMING_UP]

    assert [verdict.step for verdict in young] == list(range(1, 25))
    assert young[0].ranks == {"g0": 4}
    assert young[-1].step_seconds is None
    assert not any(verdict.late or verdict.gpus_lost for verdict in young)
    assert found.verdicts[24][1].reason is None


def test_restart_begins_anew() -> None:
    """The late rank of a job that starts again is a new incident, once there are steps again."""
    job = Job(seed=5, seconds=200, restart_seconds=100, faults=(replace(LATE, rank=3),))
    found = judged(job)
    before, after = found.incidents

    assert found.named == {(3, "data", PERSISTENT)}
    assert before.cleared is not None
    assert 100 < before.cleared < after.onset < after.named < 160
    assert after.cleared is None
    assert any(at > 120 and verdict.reason == WARMING_UP for at, verdict in found.verdicts)


@pytest.mark.parametrize(
    ("job", "ranks"),
    [
        (Job(ranks=1), {"g0": 1}),
        (Job(ranks=3, group_work=(1.0,) * 3), dict.fromkeys(["g0", "g1", "g2"], 1)),
    ],
)
def test_ranks_without_a_peer_are_not_judged(job: Job, ranks: dict[str, int]) -> None:
    """A job of one rank, or of groups of one, says so; how long its steps take is known."""
    found = judged(job).last

    assert (found.reason, found.ranks) == (NO_PEERS, ranks)
    assert found.step_seconds is not None
    assert found.slowdown is None
    assert not found.late
    assert not found.gpus_lost


def test_steps_without_busy_time_are_not_judged() -> None:
    """Ranks that report only what they wait have nothing that could be compared."""
    reduction = PlainReduction({0: "all", 1: "all"}, {})
    judge = Judge(reduction)
    for number in range(1, 61):
        leader = reduction.add(number, {0: {"sync": 1.0}, 1: {"sync": 1.0}}, float(number))
        found = judge.judge(reduction.mark(float(number)), [leader], step=number)

    assert found.reason == NO_BUSY_TIME
    assert not found.late
    assert not found.changes


@pytest.mark.parametrize(("seed", "is_synced"), [(0, True), (1, False), (2, True), (3, False)])
def test_ranks_that_often_have_no_own_time_are_compared_in_numbers(
    seed: int, is_synced: bool
) -> None:
    """Whatever share of its steps a rank has own time in, no ratio is of nothing."""
    random = Random(seed)
    ranks = range(random.randint(2, 5))
    reduction = PlainReduction(dict.fromkeys(ranks, "all"), {})
    judge = Judge(reduction)
    now = 0.0
    for number in range(1, 201):
        if number % 100 == 1:
            shares = [random.choice((0.0, 0.0, 0.3, 0.7, 1.0)) for _ in ranks]
        own = [random.uniform(0.01, 1.0) * (random.random() < share) for share in shares]
        waits = [max(own) - each + 0.001 if is_synced else 0.0 for each in own]
        now += max(own) + 0.001
        step = {rank: {"data": own[rank], "sync": waits[rank]} for rank in ranks}
        leader = reduction.add(number, step, now)
        found = judge.judge(reduction.mark(now), [leader], step=number)

        # A rise is from up to as far below the others.
        assert all(0 <= each.ratio <= 2 * MOST_TIMES for each in found.late)
        assert all(math.isfinite(each) for each in found.gpus_lost.values())


SAID_OF = {
    "late": Job(seconds=120, faults=(LATE,)),
    "pauses": Job(seconds=200, faults=(Fault(1, "checkpoint", 8, every=20),)),
    "slower": Job(seconds=240, slow_together_seconds=150),
    "no wait": Job(seconds=120, sync_measured=False, faults=(LATE,)),
    "alone": Job(ranks=1, seconds=60),
}


@pytest.mark.parametrize("name", SAID_OF)
def test_every_verdict_survives_its_way_as_json(name: str) -> None:
    """What a rank reads back is what was said, to six digits, in words of the closed sets.

    An exporter of the release before knows no duty; it sees a rank that pauses.
    """
    for _, made in judged(SAID_OF[name]).verdicts:
        said = made.to_json()
        read = from_json(json.loads(json.dumps(said)))

        assert read.to_json() == said
        assert (read.step, read.ranks, read.reason) == (made.step, made.ranks, made.reason)
        assert read.gpus_lost == pytest.approx(made.gpus_lost, rel=1e-5)
        names = [[(each.rank, each.kind) for each in late] for late in (read.late, made.late)]
        assert names[0] == names[1]
        assert not any(each["kind"] == DUTY for each in said["late"])
        assert made.reason is None or made.reason in REASONS
        assert set(made.gpus_lost) in (set(), set(LOST_KINDS))
        assert set(made.rotating) <= set(STAGES) - {"sync"}
        for each in made.late:
            assert each.kind in LATE_KINDS
            assert each.stage in STAGES
            assert set(each.gpus) <= set(STAGES) - {"sync"}
    # An exporter takes so many groups: the smallest are told as one.
    many = replace(made, ranks={f"g{n}": n for n in range(99)}).to_json()["ranks"]
    assert (len(many), many["g98"], sum(many.values())) == (64, 98, sum(range(99)))


@pytest.mark.parametrize(
    ("kind", "rank", "answer", "stage"),
    [
        *((kind, 2, {}, None if kind in (DUTY, MILD, UNSYNCED) else "data") for kind in LATE_KINDS),
        (PERSISTENT, 3, {"late": "data"}, None),
        # Without a judge the exporter of the node says; of another release it may say more.
        (None, 2, {}, None),
        (None, 2, {"late": "backward"}, "backward"),
        *((None, 2, {"late": said}, None) for said in ("sync", "lunch", ["data"], None)),
    ],
)
def test_stage_is_that_of_the_named_rank_if_it_may_page(
    kind: str | None, rank: int, answer: dict[str, Any], stage: str | None
) -> None:
    """Only the rank that the judge names is late, whatever the exporter of one node says."""
    said = None if kind is None else verdict(late=(late(kind=kind),))

    assert late_stage(said, rank, answer) == stage


# ---- What it decides by: what is usual, how much that varies, how long it remembers --------------


def test_middle_mean_forgets_outliers_and_uses_the_rest() -> None:
    assert middle_mean([5.0]) == 5.0
    assert middle_mean([1.0, 2.0]) == 1.5
    assert middle_mean([2.0, 90.0, -70.0, 4.0]) == 3.0
    assert middle_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 900.0]) == 4.5


@pytest.mark.parametrize("count", [3, 12])
def test_deviation_of_stretches_is_seldom_too_small_and_does_not_depend_on_how_they_are_cut(
    count: int,
) -> None:
    """Of independent noise it is known: the root of how many there are in a stretch."""
    ratios, jumps = [], []
    for seed in range(20):
        draw = Random(seed)
        times = [draw.gauss(1, 0.01) for _ in range(count * FEWEST_STRETCHES + 30)]
        found = [deviation_of(times[first:], count) for first in range(count)]
        ratios.append(found[0] / (0.01 / math.sqrt(count)))
        jumps.append(max(found) / min(found))

    assert min(ratios) > 0.8
    assert 1.05 < fmean(ratios) < 1.3
    assert fmean(jumps) < 1.1


def history(step_seconds: float, seconds: float) -> MarkHistory:
    """Return the history of a job whose steps took *step_seconds* each."""
    made = MarkHistory()
    for number in range(1, int(seconds / step_seconds) + 1):
        made.add(Mark(number, number * step_seconds, None))
    return made


@pytest.mark.parametrize(("step_seconds", "seconds"), [(1.0, 100), (2.0, 7200), (60.0, 7200)])
def test_history_is_dense_where_it_is_recent(step_seconds: float, seconds: float) -> None:
    """Marks lie about a tenth of their age apart, so that thousands of steps need few."""
    marks = history(step_seconds, seconds).marks
    end = marks[-1]

    assert len(marks) < 120
    assert end.steps == int(seconds / step_seconds)
    for before, after in pairwise(marks[1:]):
        age = end.at - before.at
        assert after.at - before.at <= max(0.25 * age, 2 * step_seconds)


def test_history_forgets_what_is_older_than_six_hours() -> None:
    """Of long steps it keeps at least 120, however old they are."""
    assert history(10.0, 30_000).marks[0].at > 30_000 - 1.2 * 21_600
    assert history(360.0, 80_000).marks[0].steps < 222 - 120


def test_noise_or_drift_that_lasts_names_nobody() -> None:
    """Two per cent for ten steps are named four times, by the noise of steps alone.

    Each node is 1 % off for half an hour at a time; then its ranks stray together.
    """
    assert told(correlated, 12.0, hours=4.0, seed=2).total() == 0
    assert told(nodes_drift, 60.0, hours=6, seed=3).total() == 0


def test_node_that_drifts_is_mild() -> None:
    """Young jobs do not know how their nodes drift: each of these named a node."""
    found = sum((told(nodes_drift, 60.0, hours=2, seed=s) for s in (112, 231, 303, 414)), Counter())

    assert (found["named"], found["mild"] > 0) == (0, True)

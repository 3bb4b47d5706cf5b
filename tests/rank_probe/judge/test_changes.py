"""What changed where a whole peer group takes longer, and what many late ranks have in common."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import pytest

from rank_probe.judge.common import in_common, spans_of, together
from rank_probe.judge.verdict import (
    MOST_LATE,
    MOST_SPANS,
    NODE,
    PAUSES,
    Change,
    Late,
    Together,
    from_json,
)
from tests.exporter.snapshots import late
from tests.rank_probe.judged import (
    STAGE_SHARES,
    Alter,
    Fault,
    Job,
    Judged,
    Step,
    altered,
    judged,
    judged_steps,
    simulate,
)

SINCE = 300.0


def slower(ranks: range, stage: str, ratio: float, until: float = 1e9) -> tuple[Fault, ...]:
    return tuple(Fault(rank, stage, ratio, 1, SINCE, until) for rank in ranks)


def takes(stage: str, longer: float) -> float:
    """Return how many times as long *stage* takes with *longer* more of a step."""
    return 1 + longer / STAGE_SHARES[stage]


def told(found: Judged) -> list[tuple[float, Change]]:
    """Every change in every verdict, and when."""
    return [(at, change) for at, verdict in found.verdicts for change in verdict.changes]


# Interference on one pipeline stage: its forward takes three times what it took.
INTERFERED = Job(ranks=4, group_work=(1.0, 1.0), faults=slower(range(2, 4), "forward", 0.5))
NO_WAIT = Job(sync_measured=False, faults=slower(range(4), "data", 0.5))


@pytest.mark.parametrize(
    ("job", "group", "stage", "ratio"),
    [
        (INTERFERED, "g1", "forward", takes("forward", 0.5)),
        # All ranks take half as long again in every stage: the largest says it.
        (Job(ranks=8, slow_together_seconds=SINCE), "g0", "backward", 1.5),
        # What a stage took is known without the wait too.
        (NO_WAIT, "g0", "data", takes("data", 0.5)),
    ],
)
def test_stage_of_a_group_that_became_slower_is_told(
    job: Job, group: str, stage: str, ratio: float
) -> None:
    """It is nobody's fault: the group, its stage and how much longer that takes, since when."""
    found = judged(replace(job, seed=4, seconds=SINCE + 150))
    (change,) = found.last.changes

    assert found.named == set()
    assert (change.peer_group, change.stage) == (group, stage)
    assert change.ratio == pytest.approx(ratio, rel=0.05)
    onset = found.verdicts[-1][0] - change.since_seconds
    assert onset == pytest.approx(SINCE, abs=5)


def test_change_is_told_from_a_minute_of_steps_on_until_it_is_over() -> None:
    """A storage that was throttled for minutes is one change with one stage meanwhile."""
    found = judged(Job(seed=4, seconds=600, faults=slower(range(4), "data", 0.5, 480)))
    said = told(found)

    assert SINCE < said[0][0] <= SINCE + 60
    assert 480 < said[-1][0] < 540
    assert {(change.peer_group, change.stage) for _, change in said} == {("g0", "data")}
    assert len(said) == sum(said[0][0] <= at <= said[-1][0] for at, _ in found.verdicts)


@pytest.mark.parametrize(
    ("stage", "busy", "later", "seed"),
    [
        ("optimizer", 0.5, 1200.0, 0),
        ("data", 2.0, 1800.0, 39),  # After half an hour, which is few steps then.
    ],
)
def test_three_percent_are_told_within_five_minutes(
    stage: str, busy: float, later: float, seed: int
) -> None:
    """A slowdown of one stage on all ranks is reported with what it costs the job."""
    faults = tuple(Fault(rank, stage, 0.03, 1, later) for rank in range(8))
    job = Job(ranks=8, seed=seed, seconds=later + 300, busy_seconds=busy, faults=faults)
    found = judged(job, 5.0)
    said = told(found)

    assert later < said[0][0] < later + 300
    assert {change.stage for _, change in said} == {stage}
    assert {at for at, _ in said} == {at for at, _ in found.verdicts if at >= said[0][0]}
    last = said[-1][1]
    assert last.slower == 0
    assert last.step_ratio == pytest.approx(1.03, abs=0.01)
    assert last.gpus == pytest.approx(8 * (1 - 1 / last.step_ratio))
    assert found.named == set()


def stretched(factor: Callable[[float], float]) -> Alter:
    """All work takes *factor* of the time as long."""

    def alter(step: Step, at: float) -> None:
        times = factor(at)
        for own in step.stages:
            own.update({stage: times * spent for stage, spent in own.items()})

    return alter


def test_more_work_is_no_change() -> None:
    """Sequences twice as long take longer, and so does the same work on a slower machine."""
    job = Job(seed=4, seconds=600)
    steps = altered(job, stretched(lambda at: 2.0 if at > SINCE else 1.0))
    same = judged_steps(job, steps, work=lambda _: 1e4)
    for seldom in (1, 2):  # Longer steps are compared more often.
        longer = judged_steps(
            *(job, steps),
            work=lambda step: 2e4 if step.end_seconds > SINCE else 1e4,
            every=lambda step, seldom=seldom: 1 if step.end_seconds > SINCE else seldom,  # type: ignore[misc]
        )
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


def evaluates(every: int, seconds: float) -> Alter:
    """All ranks do, in some steps from SINCE on."""

    def alter(step: Step, at: float) -> None:
        if step.number % every == 0 and at > SINCE:
            for own in step.stages:
                own["eval"] = seconds

    return alter


# A hiccup fills most of the shortest stretch that is looked at, and does not last; of six of eight,
# a jump that lasts is told sooner than one of all.
UNALTERED = {
    "noise": Job(stage_noise=0.2, common_noise=0.3),
    "late in turn": Job(faults=(Fault(None, "data", 0.5),)),
    "one late rank": Job(faults=(Fault(1, "data", 0.5, start_seconds=SINCE),)),
    "one that saves": Job(faults=(Fault(1, "checkpoint", 10, every=60, start_seconds=SINCE),)),
    "a hiccup of 25 s": Job(faults=slower(range(4), "data", 0.5, SINCE + 25)),
    "one of six": Job(8, faults=slower(range(6), "data", 0.5, SINCE + 25)),
}
NO_CHANGES: dict[str, tuple[Job, Alter]] = {
    name: (replace(job, seed=1, seconds=500), lambda *_: None) for name, job in UNALTERED.items()
} | {
    # A schedule: twice as long after half an hour.
    "rises slowly": (Job(seconds=1350), stretched(lambda at: 1 + at / 1800)),
    # What has risen for long is expected to rise on: to twenty times in an hour.
    "rises ever faster": (Job(seconds=1140), stretched(lambda at: math.exp(at / 1200))),
    "a small one of 70 s": (Job(seconds=900), stretched(lambda at: 1 + 0.06 * (800 < at < 870))),
    "drifts for ten minutes": (Job(seconds=1800), stretched(drift(0.03, 600, 2))),
    "evaluates for a minute": (Job(seconds=900), evaluates(300, 60)),
    "evaluates often": (Job(seconds=900), evaluates(10, 1.5)),
}


@pytest.mark.parametrize("case", NO_CHANGES)
def test_usual_time_of_a_group_that_stays_as_it_was_is_no_change(case: str) -> None:
    """Noise, single ranks, short slowdowns, and rising or drifting times are no change either."""
    job, alter = NO_CHANGES[case]
    job = replace(job, busy_seconds=1)

    assert told(judged_steps(job, altered(job, alter), 5.0)) == []


def test_what_a_late_rank_costs_is_no_part_of_a_change() -> None:
    """Though the steps of the whole job take as long as that rank's."""
    late = Fault(3, "data", 0.5, start_seconds=600)
    job = Job(4, seconds=1500, faults=(*slower(range(4), "forward", 0.05), late))
    change = told(judged(job))[-1][1]

    assert (change.stage, change.gpus < 0.4) == ("forward", True)


def test_slower_network_is_a_change_of_sync() -> None:
    """All ranks wait longer for each other than they did, and none of them is late."""
    job = Job(seed=4, seconds=SINCE + 200)
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


def facts(
    ranks: int, labels: Mapping[str, list[str]] | None = None, per_node: int = 4
) -> dict[int, dict[str, str]]:
    """Return the facts of *ranks* with the same GPU and so many a node; *labels* are by node."""
    return {
        rank: {
            "node": f"n{rank // per_node}",
            "GPU model": "H100",
            **{name: values[rank // per_node] for name, values in (labels or {}).items()},
        }
        for rank in range(ranks)
    }


RACKS = {"rack": ["r1", "r1", "r2", "r2"]}


LONG = {rank: {"node": f"{rank // 4}{'x' * 60}"} for rank in range(16)}


@pytest.mark.parametrize(
    ("those", "others", "known", "shared"),
    [
        (range(4, 8), None, facts(16, RACKS), "node n1"),
        # What is the same of all of them is said before a list of nodes, the user's labels first.
        (range(8), None, facts(16, {"driver": ["535", "535", "570", "570"]}), "driver 535"),
        (range(8), None, facts(16, {"driver": ["1", "1", "2", "2"], **RACKS}), "rack r1"),
        (range(4, 12), None, facts(16, RACKS), "node n1 or n2"),
        # A label that only some have is theirs.
        (range(8), None, facts(16, {"old": ["yes", "yes", "", ""]}), "old yes"),
        # One rank of the node is not late, or one of another node is.
        (range(4, 7), None, facts(16, RACKS), ""),
        (range(4, 9), None, facts(16, RACKS), ""),
        # Nothing tells all from nobody, and one rank has everything for itself.
        (range(16), None, facts(16, RACKS), ""),
        (range(4, 5), None, facts(16, RACKS), ""),
        # Any two ranks on two nodes would have those in common.
        (range(2), range(2, 4), facts(4, per_node=1), ""),
        # Of a rank of another release nothing is known: it may have the same.
        (range(4), range(4, 8), facts(7), ""),
        # Two long names do not fit into a series; one does.
        (range(8), None, LONG, ""),
        (range(4), None, LONG, f"node 0{'x' * 60}"),
    ],
)
def test_what_all_of_them_have_and_no_other_is_told(
    those: range, others: range | None, known: dict[int, dict[str, str]], shared: str
) -> None:
    """The *others* are all of 16, where they are not given."""
    rest = set(range(16)) - set(those) if others is None else set(others)

    assert in_common(those, rest, known) == shared


def lates(*ranks: int, **changes: object) -> list[Late]:
    return [late(rank=rank, **changes) for rank in ranks]


def since(*seconds: float) -> list[Late]:
    return [late(rank=rank, since_seconds=each) for rank, each in enumerate(seconds)]


ON_A_NODE = lates(4, 5, 6, 7, kind=NODE)
OTHERS = [*lates(0, stage="forward"), *lates(1, kind=PAUSES), *lates(2, since_seconds=500.0)]
FIVE_OF_TWELVE = Together("data", 5, 30.0, ((0, 0), (3, 3), (6, 6), (9, 10)))
# As many stretches as are told, and one more.
SPANS, ANOTHER = range(0, 2 * MOST_SPANS, 2), range(0, 2 * MOST_SPANS + 2, 2)
EACH_ALONE = Together("data", MOST_SPANS, 30.0, tuple((rank, rank) for rank in SPANS))


@pytest.mark.parametrize(
    ("those", "ranks", "known", "expected"),
    [
        # With something in common, however few of the job they are.
        (ON_A_NODE, 16, facts(16), [Together("data", 4, 30.0, ((4, 7),), "node n1")]),
        # Those of another stage, time or kind are not of it.
        ([*ON_A_NODE, *OTHERS], 16, facts(16), [Together("data", 4, 30.0, ((4, 7),), "node n1")]),
        (ON_A_NODE, 16, {}, []),
        # More than a third are a set with nothing in common.
        (lates(0, 3, 6, 9, 10), 12, {}, [FIVE_OF_TWELVE]),
        (lates(0, 3, 6, 9), 12, {}, []),
        (lates(*SPANS), 80, {}, [EACH_ALONE]),
        (lates(*ANOTHER), 80, {}, [Together("data", MOST_SPANS + 1, 30.0)]),
        (lates(0), 2, {}, []),
        # An onset is known to ten seconds, and to a tenth of what has passed since.
        (since(600.0, 631.0), 4, {}, [Together("data", 2, 631.0, ((0, 1),))]),
        (since(12.0, 21.0), 4, {}, [Together("data", 2, 21.0, ((0, 1),))]),
        (since(600.0, 730.0), 4, {}, []),
    ],
)
def test_late_ranks_are_a_set_with_something_in_common_or_many(
    those: list[Late], ranks: int, known: dict[int, dict[str, str]], expected: list[Together]
) -> None:
    assert list(together(those, range(ranks), known)) == expected


@pytest.mark.parametrize(
    ("ranks", "busy", "those", "shared"),
    [
        (8, 0.5, range(6), ""),
        (8, 4.0, range(6), ""),
        (48, 0.5, range(36), ""),
        (16, 0.5, range(12), "rack r1 or r2"),
    ],
)
def test_most_ranks_that_become_slower_are_a_set_within_a_minute(
    ranks: int, busy: float, those: range, shared: str
) -> None:
    """Exactly those, with what only they have in common and what it costs, as the verdict travels.

    The others are the exception: each of them would be its peers' usual pace. They wait for one or
    the other of the slow ones, which is no rotation.
    """
    since = 600 * busy
    faults = tuple(Fault(rank, "data", 0.3, 1, since) for rank in those)
    job = Job(ranks, seed=1, busy_seconds=busy, seconds=since + 75, faults=faults)
    racks = {"rack": ["r1", "r1", "r2", "r3"]} if shared else {}
    found = judged(job, facts=facts(ranks, racks, per_node=4 if shared else 100))
    settled = [verdict for at, verdict in found.verdicts if at > since + 60]

    assert found.named == set()
    assert not any(verdict.changes for at, verdict in found.verdicts if at <= since)
    assert len(settled) > 3
    for verdict in settled:
        (change,) = from_json(json.loads(json.dumps(verdict.to_json()))).changes
        assert (change.stage, change.slower, change.in_common) == ("data", len(those), shared)
        assert change.slower_spans == spans_of(those)
        assert change.slower_ranks == tuple(those)[:MOST_LATE]
        assert change.step_ratio == pytest.approx(1.27, abs=0.04)
    lost = found.last.gpus_lost
    assert lost["persistent"] == pytest.approx((ranks - len(those)) * 0.3 / 1.38, rel=0.1)
    assert lost["rotating"] < 0.06 * ranks

"""The accounting is exact and additive: it finds the culprit, also where means hide it."""

from collections.abc import Collection

import pytest

from rankskew.accounting.step import account, charge, kinds, slowdown

Ranks = dict[int, dict[str, float]]

HEALTHY = {"optimizer": 0.01, "data": 0.05, "forward": 0.1, "backward": 0.2}


def job(ranks: int, late: dict[int, dict[str, float]]) -> Ranks:
    return {
        rank: {stage: HEALTHY[stage] + late.get(rank, {}).get(stage, 0.0) for stage in HEALTHY}
        for rank in range(ranks)
    }


def test_stage_that_a_rank_does_not_have_is_not_charged() -> None:
    """A rank that is under its peers in every stage is charged in one that it has.

    The pacer of a step is the rank that is latest, in the stage where it is furthest ahead.
    """
    slow = {"data": 1.0, "forward": 1.0}
    fast, faster = {"data": 0.5, "forward": 0.5}, {"data": 0.1, "forward": 0.1}
    found = charge({0: faster, 1: fast, 2: slow, 3: slow, 4: slow}, {})

    assert sum(seconds for (rank, _), seconds in found.caused.items() if rank == 1) > 0
    assert {stage for _, stage in found.caused} <= {"data", "forward"}
    late = charge(job(4, {1: {"forward": 0.1}, 2: {"data": 0.1, "backward": 0.2}}), {})
    assert (late.pacer, late.stage) == (2, "backward")


# ---- Whole runs ----------------------------------------------------------------------------------


def step(late: dict[int, dict[str, float]], ranks: int = 4, communication: float = 0.0) -> Ranks:
    """Return a synchronous step of equal *ranks*, some of them *late* by seconds in stages."""
    busy = job(ranks, late)
    end = max(sum(stages.values()) for stages in busy.values()) + communication
    return {rank: stages | {"sync": end - sum(stages.values())} for rank, stages in busy.items()}


LATE = step({2: {"data": 0.2}}, communication=0.05)
TURNS = [step({number % 4: {"data": 0.2}}) for number in range(40)]
HEAVY = step({2: {"forward": 0.1}, 3: {"forward": 0.1}})
AHEAD = step({1: {"forward": 0.1, "backward": 0.3}})
TWO = step({1: {"data": 0.1}, 3: {"forward": 0.3}})
OF_TURNS = {(rank, "data"): 10 * 3 * 0.2 for rank in range(4)}
OF_AHEAD = {(1, "forward"): 0.3, (1, "backward"): 0.9}
OF_TWO = {(1, "data"): 0.1 * 2 / 2, (3, "forward"): 0.1 * 2 / 2 + 0.2 * 3}
# Nobody, or not everybody, measures the wait; or it is measured, as none.
BLIND = {rank: {"data": 0.1 + 0.2 * (rank == 1)} for rank in range(3)}
MIXED = LATE | {rank: {s: LATE[rank][s] for s in HEALTHY} for rank in (0, 2)}
ZERO = {rank: each | {"sync": 0.0} for rank, each in BLIND.items()}


@pytest.mark.parametrize(
    ("steps", "peer_groups", "named", "by_kind", "caused"),
    [
        pytest.param([], {}, {3}, (0, 0, 0, 0), {}, id="no step"),
        pytest.param([step({})] * 3, {}, (), (0, 0, 0, 0), {}, id="equal ranks"),
        # One rank 0.2 s late costs three peers 0.2 s each, and the network is nobody's fault.
        pytest.param([LATE] * 5, {}, {2}, (0, 3, 0, 1), {(2, "data"): 3}, id="late"),
        pytest.param([LATE] * 5, {}, (), (0, 0, 3, 1), {(2, "data"): 3}, id="late, not named"),
        # The means are equal, the loss is there.
        pytest.param(TURNS, {}, (), (0, 0, 24, 0), OF_TURNS, id="in turn"),
        # A rank is charged in each stage as far as it is ahead there.
        pytest.param([AHEAD], {}, {1}, (0, 1.2, 0, 0), OF_AHEAD, id="two stages"),
        # Half each while two are late, then the later one.
        pytest.param([TWO], {}, {3}, (0, 0.7, 0.1, 0), OF_TWO, id="two ranks"),
        pytest.param([HEAVY], dict(enumerate("aabb")), {3}, (0.2, 0, 0, 0), {}, id="heavier group"),
        # What was not measured is computed, and none of it is communication's.
        pytest.param([BLIND], {}, {1}, (0, 0.4, 0, 0), {(1, "data"): 0.4}, id="not measured"),
        pytest.param([MIXED], {}, {2}, (0, 0.6, 0, 0.1), {(2, "data"): 0.6}, id="some measured"),
        # A zero is a reading: ranks that did not wait for the slowest were not synchronous.
        pytest.param([ZERO], {}, {1}, (0, 0.4, 0, -0.4), {(1, "data"): 0.4}, id="no wait"),
    ],
)
def test_waiting_is_split_by_kind_and_by_who_caused_it(
    steps: list[Ranks],
    peer_groups: dict[int, str],
    named: Collection[int],
    by_kind: tuple[float, ...],
    caused: dict[tuple[int, str], float],
) -> None:
    """In seconds: of groups, of named ranks, of the others, of communication."""
    found = account(steps, peer_groups)

    assert tuple(kinds(found, named).values()) == pytest.approx(by_kind, abs=1e-12)
    assert found.caused == pytest.approx(caused)
    charged = [*found.unequal.values(), *found.caused.values()]
    assert sum(charged) == pytest.approx(sum(found.waited.values()))


@pytest.mark.parametrize("excess", [0.018, 0.036, 0.36])
def test_slowdown_is_that_of_the_named_ranks(excess: float) -> None:
    """What if they were as fast as their peers: the excess of the latest named rank goes, alone.

    A named rank that finishes before the heaviest group makes no rank wait.
    """
    steps = [step({1: {"data": excess}, 2: {"forward": excess / 2}}, communication=0.04)] * 3
    healthy = 0.36 + 0.04

    assert slowdown(steps, {}, {1, 2}) == pytest.approx(1 + excess / healthy)
    assert slowdown(steps, {}, {1}) == pytest.approx((healthy + excess) / (healthy + excess / 2))
    assert slowdown(steps, {}, ()) == slowdown([], {}, {3}) == 1.0
    light = [step({1: {"data": 0.1}, 2: {"forward": 0.2}, 3: {"forward": 0.2}})]
    assert slowdown(light, dict(enumerate("aabb")), {1}) == pytest.approx(1.0)

"""The accounting of a run is exact and additive, and sees what means over a window hide."""

from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankskew.accounting.run import Kinds, account, kinds, slowdown
from tests.rankskew.accounting.test_step import job

Step = dict[int, dict[str, float]]


def step(late: dict[int, dict[str, float]], ranks: int = 4, communication: float = 0.0) -> Step:
    """Return a synchronous step of equal *ranks*, some of them *late* by seconds in stages."""
    busy = job(ranks, late)
    end = max(sum(stages.values()) for stages in busy.values()) + communication
    return {rank: stages | {"sync": end - sum(stages.values())} for rank, stages in busy.items()}


seconds = st.floats(0.0, 10.0)
stages = st.fixed_dictionaries({"data": seconds, "forward": seconds, "sync": seconds})
runs = st.integers(1, 7).flatmap(
    lambda ranks: st.lists(
        st.fixed_dictionaries(dict.fromkeys(range(ranks), stages)), min_size=1, max_size=4
    )
)
groups = st.dictionaries(st.integers(0, 6), st.sampled_from(["pp0", "pp1"]))


@settings(deadline=None)  # Other work on the machine is not a failure.
@given(runs, groups, st.sets(st.integers(0, 6)))
def test_kinds_add_up_to_all_measured_waiting(
    steps: list[Step], peer_groups: dict[int, str], named: set[int]
) -> None:
    """Whatever was measured and whoever is named, each second of wait is of one kind."""
    found = account(steps, peer_groups)
    measured = sum(rank["sync"] for one in steps for rank in one.values())

    assert kinds(found, named).lost == pytest.approx(measured, abs=1e-9)
    assert sum(found.waited.values()) == pytest.approx(
        sum(found.unequal.values()) + sum(found.caused.values()), abs=1e-9
    )
    assert sum(found.waited.values()) <= found.seconds * len(steps[0]) + 1e-9


@settings(deadline=None)
@given(runs, groups, st.sets(st.integers(0, 6)), st.integers(0, 4))
def test_halves_add_up_to_the_whole(
    steps: list[Step], peer_groups: dict[int, str], named: set[int], cut: int
) -> None:
    """Two halves of a run cost what the run costs, kind by kind."""
    whole, *halves = (
        astuple(kinds(account(part, peer_groups), named))
        for part in (steps, steps[:cut], steps[cut:])
    )

    assert [sum(parts) for parts in zip(*halves, strict=True)] == pytest.approx(whole, abs=1e-9)


def test_equal_ranks_lose_nothing_and_neither_does_no_step() -> None:
    found = account([step({})] * 3, {})

    assert kinds(found, ()) == Kinds(0.0, 0.0, 0.0, 0.0)
    assert found.caused == {}
    assert found.seconds == pytest.approx(3 * 0.36)
    assert (kinds(account([], {}), {3}).lost, slowdown([], {}, {3})) == (0.0, 1.0)


def test_late_rank_is_charged_what_the_others_wait() -> None:
    """One rank 0.2 s late in data costs three peers 0.2 s each, all of it in data."""
    found = account([step({2: {"data": 0.2}}, communication=0.05)] * 5, {})

    assert found.caused == {(2, "data"): pytest.approx(5 * 3 * 0.2)}
    assert found.waited[2] == 0.0
    assert astuple(kinds(found, {2})) == pytest.approx((0.0, 3.0, 0.0, 5 * 4 * 0.05))
    assert kinds(found, ()).rotating == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("late", "caused"),
    [
        ({1: {"forward": 0.1, "backward": 0.3}}, {(1, "forward"): 0.3, (1, "backward"): 0.9}),
        (
            {1: {"data": 0.1}, 3: {"forward": 0.3}},
            {(1, "data"): 0.1 * 2 / 2, (3, "forward"): 0.1 * 2 / 2 + 0.2 * 3},
        ),
    ],
    ids=["two stages", "two ranks"],
)
def test_charge_is_shared(
    late: dict[int, dict[str, float]], caused: dict[tuple[int, str], float]
) -> None:
    """By stage, as far as it is ahead in each; half each while two are late, then the later one."""
    assert account([step(late)], {}).caused == pytest.approx(caused)


def test_rotating_straggler_is_seen() -> None:
    """Each rank late in turn: the means are equal, the loss is there, on all of them."""
    found = account([step({number % 4: {"data": 0.2}}) for number in range(40)], {})

    assert kinds(found, ()).rotating == pytest.approx(40 * 3 * 0.2)
    assert found.caused == {(rank, "data"): pytest.approx(10 * 3 * 0.2) for rank in range(4)}


def test_heavier_peer_group_is_nobodys_fault() -> None:
    heavy = step({2: {"forward": 0.1}, 3: {"forward": 0.1}})
    found = account([heavy], {0: "pp0", 1: "pp0", 2: "pp1", 3: "pp1"})

    assert astuple(kinds(found, {3})) == pytest.approx((0.2, 0.0, 0.0, 0.0))


def test_wait_that_was_not_measured_is_none() -> None:
    """Without a measured wait the waiting is computed, and none of it is communication's."""
    blind = {rank: {"data": 0.1 + 0.2 * (rank == 1)} for rank in range(3)}
    found = account([blind], {})

    assert found.waited == pytest.approx({0: 0.2, 1: 0.0, 2: 0.2})
    assert found.measured == found.waited
    assert kinds(found, {1}).common == 0.0


def test_ranks_without_a_measured_wait_hide_no_communication() -> None:
    """Where only some ranks measure it, what they waited for the network stays what it was."""
    mixed = step({2: {"data": 0.2}}, communication=0.05)
    for rank in (0, 2):
        del mixed[rank]["sync"]

    assert astuple(kinds(account([mixed], {}), {2})) == pytest.approx((0.0, 0.6, 0.0, 2 * 0.05))


def test_wait_of_zero_is_measured() -> None:
    """A zero is a reading: ranks that did not wait for the slowest were not synchronous."""
    zero = {rank: {"data": 0.1 + 0.2 * (rank == 1), "sync": 0.0} for rank in range(3)}
    found = account([zero], {})

    assert found.measured == {0: 0.0, 1: 0.0, 2: 0.0}
    assert kinds(found, {1}).common == pytest.approx(-0.4)


@pytest.mark.parametrize("excess", [0.018, 0.036, 0.36])
def test_slowdown_is_that_of_the_named_ranks(excess: float) -> None:
    """What if they were as fast as their peers: the excess of the latest named rank goes, alone."""
    steps = [step({1: {"data": excess}, 2: {"forward": excess / 2}}, communication=0.04)] * 3
    healthy = 0.36 + 0.04

    assert slowdown(steps, {}, {1, 2}) == pytest.approx(1 + excess / healthy)
    assert slowdown(steps, {}, {1}) == pytest.approx((healthy + excess) / (healthy + excess / 2))
    assert slowdown(steps, {}, ()) == 1.0


def test_slowdown_of_a_rank_of_a_light_group_is_none() -> None:
    """A named rank that finishes before the heaviest group makes no rank wait."""
    steps = [step({1: {"data": 0.1}, 2: {"forward": 0.2}, 3: {"forward": 0.2}})]

    assert slowdown(steps, {0: "pp0", 1: "pp0", 2: "pp1", 3: "pp1"}, {1}) == pytest.approx(1.0)

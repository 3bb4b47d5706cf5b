"""The accounting of single steps is exact and additive, and sees what means over a window hide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.accounting import account, named

HEALTHY = {"optimizer": 0.01, "data": 0.05, "forward": 0.1, "backward": 0.2}
Step = dict[int, dict[str, float]]


def step(late: dict[int, dict[str, float]], ranks: int = 4) -> Step:
    """Return a synchronous step of equal *ranks*, some of them *late* by seconds in stages."""
    busy = {
        rank: {
            stage: seconds + late.get(rank, {}).get(stage, 0.0)
            for stage, seconds in HEALTHY.items()
        }
        for rank in range(ranks)
    }
    end = max(sum(stages.values()) for stages in busy.values())
    return {rank: stages | {"sync": end - sum(stages.values())} for rank, stages in busy.items()}


seconds = st.floats(0.0, 10.0)
stages = st.fixed_dictionaries({"data": seconds, "forward": seconds, "sync": seconds})


@settings(deadline=None)  # Other work on the machine is not a failure.
@given(
    st.integers(1, 7).flatmap(
        lambda ranks: st.lists(
            st.fixed_dictionaries(dict.fromkeys(range(ranks), stages)), min_size=1, max_size=4
        )
    ),
    st.dictionaries(st.integers(0, 6), st.sampled_from(["pp0", "pp1"])),
)
def test_charges_add_up_to_the_loss(steps: list[Step], peer_groups: dict[int, str]) -> None:
    """Whatever was measured, every lost GPU-second is charged once, and none is negative."""
    found = account(steps, peer_groups)
    charges = [found.by_groups, found.by_nobody, *found.caused.values()]

    assert sum(charges) == pytest.approx(found.lost, abs=1e-9)
    assert min([*charges, *found.waited.values()]) >= -1e-9
    assert found.lost <= found.seconds * len(steps[0]) + 1e-9


def test_equal_ranks_lose_nothing() -> None:
    """A job without skew has nothing to charge."""
    found = account([step({})] * 3, {})

    assert (found.lost, found.by_groups, found.by_nobody, found.caused) == (0.0, 0.0, 0.0, {})
    assert found.seconds == pytest.approx(3 * 0.36)


def test_no_step_is_no_loss() -> None:
    """An empty trace accounts to nothing, and nobody is named."""
    assert account([], {}).lost == 0.0
    assert named([], {}).reason == "single_rank"


def test_late_rank_is_charged_what_the_others_wait() -> None:
    """One rank 0.2 s late in data costs three peers 0.2 s each, all of it in data."""
    found = account([step({2: {"data": 0.2}})] * 5, {})

    assert found.caused == {(2, "data"): pytest.approx(5 * 3 * 0.2)}
    assert found.waited[2] == 0.0
    assert [late.rank for late in named([step({2: {"data": 0.2}})] * 5, {}).late] == [2]


def test_rank_late_in_two_stages_is_charged_in_both() -> None:
    """A slow GPU is late in forward and in backward, by as much as it is ahead in each."""
    found = account([step({1: {"forward": 0.1, "backward": 0.3}})], {})

    assert found.caused == {
        (1, "forward"): pytest.approx(3 * 0.1),
        (1, "backward"): pytest.approx(3 * 0.3),
    }


def test_rotating_straggler_is_seen_and_nobody_is_named() -> None:
    """Each rank late in turn: the means are equal, the loss is there, on all of them."""
    steps = [step({number % 4: {"data": 0.2}}) for number in range(40)]
    found = account(steps, {})

    assert named(steps, {}).late == ()
    assert found.lost == pytest.approx(40 * 3 * 0.2)
    assert found.caused == {(rank, "data"): pytest.approx(10 * 3 * 0.2) for rank in range(4)}


def test_heavier_peer_group_is_nobodys_fault() -> None:
    """A group that has more to do is charged as a group."""
    heavy = step({2: {"forward": 0.1}, 3: {"forward": 0.1}})
    found = account([heavy], {0: "pp0", 1: "pp0", 2: "pp1", 3: "pp1"})

    assert found.by_groups == pytest.approx(found.lost) == pytest.approx(0.2)
    assert found.caused == {}


def test_fast_rank_is_charged_to_nobody() -> None:
    """When one rank is faster than all the others, no rank is at fault."""
    fast = {rank: {"forward": 0.1 if rank == 0 else 0.2, "sync": 0.0} for rank in range(8)}
    found = account([fast], {})

    assert found.caused == {}
    assert found.by_nobody == pytest.approx(0.1)


def test_rank_over_its_peers_in_no_single_stage_is_charged_all_the_same() -> None:
    """The stages' baselines need not add up to that of the whole: nothing is lost between them."""
    heavy = {"data": 1.0, "forward": 1.0}
    found = account([{0: {"forward": 1.0}, 1: {"data": 1.0}, 2: heavy, 3: heavy}], {})

    assert {rank for rank, _ in found.caused} == {2, 3}
    assert sum(found.caused.values()) == pytest.approx(found.lost) == pytest.approx(2.0)


def test_stage_that_no_step_measured_does_not_occur() -> None:
    """Without any wait measured nobody is named, however far the ranks are apart."""
    blind = {rank: stages | {"sync": 0.0} for rank, stages in step({2: {"data": 0.2}}).items()}

    assert named([blind] * 5, {}).reason == "no_sync"


def test_noise_of_few_steps_names_nobody() -> None:
    """An excess within the standard error of the steps is no lateness."""
    delays = [(0.3, 0.0), (0.0, 0.4), (0.0, 0.0)] * 2
    steps = [step({0: {"data": first}, 1: {"data": second}}, 2) for first, second in delays]

    assert named(steps, {}).late == ()
    assert account(steps, {}).lost == pytest.approx(2 * 0.3 + 2 * 0.4)

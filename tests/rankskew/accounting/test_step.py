"""The accounting of one step: its charges add up and find the culprit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankskew.accounting.step import Charges, charge

Ranks = dict[int, dict[str, float]]

HEALTHY = {"optimizer": 0.01, "data": 0.05, "forward": 0.1, "backward": 0.2}

# In whole nanoseconds, as clocks count: smaller differences vanish when they are scaled.
stage_times = st.integers(0, 10_000_000_000).map(lambda nanoseconds: nanoseconds / 1e9)
measured = st.dictionaries(
    st.integers(0, 20),
    st.fixed_dictionaries({"optimizer": stage_times, "data": stage_times, "backward": stage_times}),
    min_size=1,
)
groups = st.fixed_dictionaries(dict.fromkeys(range(21), st.sampled_from(["pp0", "pp1"])))


def job(ranks: int, late: dict[int, dict[str, float]]) -> Ranks:
    return {
        rank: {
            stage: seconds + late.get(rank, {}).get(stage, 0.0)
            for stage, seconds in HEALTHY.items()
        }
        for rank in range(ranks)
    }


def total_by_rank(found: Charges) -> dict[int, float]:
    """Return what each rank is charged, over all stages."""
    ranks = {rank: 0.0 for rank in found.waited}
    for (rank, _), seconds in found.caused.items():
        ranks[rank] += seconds
    return ranks


@settings(deadline=None)
@given(measured, groups)
def test_charges_add_up_to_all_waiting(ranks: Ranks, peer_groups: dict[int, str]) -> None:
    """Every GPU-second that a rank waits is charged once: to a group, or to a rank and a stage."""
    found = charge(ranks, peer_groups)
    charged = [*found.unequal.values(), *found.caused.values()]

    assert sum(charged) == pytest.approx(sum(found.waited.values()), abs=1e-9)
    assert min([*charged, *found.waited.values()]) >= -1e-9


@settings(deadline=None)
@given(measured, groups, st.permutations(range(21)))
def test_permuting_the_ranks_changes_nothing(
    ranks: Ranks, peer_groups: dict[int, str], renamed: list[int]
) -> None:
    """A rank's number means nothing: with other numbers the same work is charged the same."""
    found = charge(ranks, peer_groups)
    other = charge(
        {renamed[rank]: ranks[rank] for rank in reversed(ranks)},
        {renamed[rank]: group for rank, group in peer_groups.items()},
    )

    for mine, theirs in ((found.waited, other.waited), (found.unequal, other.unequal)):
        assert theirs == pytest.approx({renamed[rank]: value for rank, value in mine.items()})
    assert dict(other.caused) == pytest.approx(
        {(renamed[rank], stage): value for (rank, stage), value in found.caused.items()}, abs=1e-9
    )


@settings(deadline=None)
@given(measured, groups, st.floats(0.001, 1000.0))
def test_scaling_the_times_scales_the_charges(
    ranks: Ranks, peer_groups: dict[int, str], scale: float
) -> None:
    """Hours or milliseconds: whoever is charged half of the waiting is charged half of it."""
    slower = {rank: {s: t * scale for s, t in stages.items()} for rank, stages in ranks.items()}
    found, scaled = charge(ranks, peer_groups), charge(slower, peer_groups)

    assert total_by_rank(scaled) == pytest.approx(
        {rank: seconds * scale for rank, seconds in total_by_rank(found).items()},
        rel=1e-6,
        abs=1e-9 * scale,
    )


@settings(deadline=None)
@given(
    st.lists(st.floats(0.95, 1.05), min_size=2, max_size=16),
    st.sampled_from(sorted(HEALTHY)),
    st.data(),
)
def test_one_slowed_rank_is_charged_the_most(
    noise: list[float], stage: str, data: st.DataObject
) -> None:
    """A rank slowed beyond its peers' noise paces the step, in that stage, and pays for it."""
    ranks = {rank: {s: t * ratio for s, t in HEALTHY.items()} for rank, ratio in enumerate(noise)}
    culprit = data.draw(st.integers(0, len(noise) - 1))
    ranks[culprit][stage] += 0.1
    charges = charge(ranks, {})

    assert (charges.pacer, charges.stage) == (culprit, stage)
    by_rank = total_by_rank(charges)
    assert max(by_rank, key=lambda rank: by_rank[rank]) == culprit
    assert by_rank[culprit] >= 0.05 * (len(noise) - 1)


def test_stage_that_a_rank_does_not_have_is_not_charged() -> None:
    """A rank that is under its peers in every stage is charged in one that it has."""
    slow = {"data": 1.0, "forward": 1.0}
    fast, faster = {"data": 0.5, "forward": 0.5}, {"data": 0.1, "forward": 0.1}
    found = charge({0: faster, 1: fast, 2: slow, 3: slow, 4: slow}, {})

    assert sum(seconds for (rank, _), seconds in found.caused.items() if rank == 1) > 0
    assert {stage for _, stage in found.caused} <= {"data", "forward"}

"""The live page's judgement names the late rank and its stage, and nobody in a healthy job."""

import random

import pytest

from exporter.judge import judge
from exporter.skew import busy_seconds

HEALTHY = {"optimizer": 0.01, "data": 0.05, "forward": 0.1, "backward": 0.2}

Ranks = dict[int, dict[str, float]]


def synchronous(busy: Ranks, communication_seconds: float = 0.02) -> Ranks:
    """Add to each rank the wait that makes every step as long as the slowest rank's."""
    slowest = max(busy_seconds(stages) for stages in busy.values())
    return {
        rank: stages | {"sync": slowest - busy_seconds(stages) + communication_seconds}
        for rank, stages in busy.items()
    }


def job(ranks: int, **late: float) -> Ranks:
    """Return a healthy job whose rank 2 (the last one, if there are fewer) needs longer."""
    busy = {rank: dict(HEALTHY) for rank in range(ranks)}
    culprit = busy[min(2, ranks - 1)]
    for stage, seconds in late.items():
        culprit[stage] = culprit.get(stage, 0.0) + seconds
    return synchronous(busy)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("stage", ["optimizer", "other", "data", "forward", "backward"])
def test_late_rank_is_named_with_its_stage_and_cost(ranks: int, stage: str) -> None:
    """One slow rank is named alone, in its stage, and every other GPU's wait is its cost."""
    verdict = judge(job(ranks, **{stage: 0.2}))

    assert verdict.reason is None
    assert [(late.rank, late.stage) for late in verdict.late] == [(min(2, ranks - 1), stage)]
    step = sum(HEALTHY.values()) + 0.2 + 0.02
    assert verdict.late[0].excess_seconds == pytest.approx(0.2)
    assert verdict.late[0].gpus_lost == pytest.approx((ranks - 1) * 0.2 / step)
    assert verdict.gpus_lost == pytest.approx(verdict.late[0].gpus_lost)


def test_late_ranks_share_the_loss_by_their_excess() -> None:
    """Two late ranks cost together what the step lost, the later one more."""
    busy = {rank: dict(HEALTHY) for rank in range(6)}
    busy[1]["data"] += 0.1
    busy[4]["forward"] += 0.3
    verdict = judge(synchronous(busy))

    assert [(late.rank, late.stage) for late in verdict.late] == [(4, "forward"), (1, "data")]
    assert verdict.late[0].gpus_lost == pytest.approx(3 * verdict.late[1].gpus_lost)
    assert sum(late.gpus_lost for late in verdict.late) == pytest.approx(verdict.gpus_lost)


def test_half_of_the_ranks_may_be_late() -> None:
    """The baseline stays with the healthy ranks when a whole node of two is slow."""
    busy = {rank: dict(HEALTHY) for rank in range(8)}
    for rank in range(4):
        busy[rank]["backward"] += 0.1

    assert {late.rank for late in judge(synchronous(busy)).late} == {0, 1, 2, 3}


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_healthy_noise_names_nobody(ranks: int) -> None:
    """Over a minute of noisy steps the means differ by a per cent: nobody is late."""
    noise = random.Random(ranks)
    busy = {
        rank: {stage: s * noise.gauss(1, 0.005) for stage, s in HEALTHY.items()}
        for rank in range(ranks)
    }

    assert judge(synchronous(busy)).late == ()


def test_identical_ranks_have_no_spread_to_divide_by() -> None:
    """Equal ranks lose nothing and nobody is named."""
    verdict = judge(job(8))

    assert verdict.late == ()
    assert verdict.gpus_lost == pytest.approx(0)


def test_uncertain_means_name_nobody() -> None:
    """An excess within the standard error of so few steps is noise, a certain one is not."""
    ranks = job(2, data=0.03)

    assert judge(ranks, standard_errors={0: 0.01, 1: 0.01}).late == ()
    assert [late.rank for late in judge(ranks, standard_errors={0: 0.001, 1: 0.001}).late] == [1]


def test_heavier_peer_group_is_nobodys_fault() -> None:
    """Unequal pipeline stages are charged to the groups, not to their ranks."""
    busy = {rank: dict(HEALTHY) for rank in range(4)}
    for rank in (2, 3):
        busy[rank]["forward"] += 0.1
    verdict = judge(synchronous(busy), peer_groups={0: "pp0", 1: "pp0", 2: "pp1", 3: "pp1"})

    assert verdict.late == ()
    assert verdict.group_gpus_lost == pytest.approx(verdict.gpus_lost)
    assert verdict.gpus_lost == pytest.approx(2 * 0.1 / (sum(HEALTHY.values()) + 0.12))


def test_late_rank_of_a_lighter_group_paces_nobody() -> None:
    """A rank that is late among its peers, yet done before the heavier group, costs nothing."""
    busy = {rank: dict(HEALTHY) for rank in range(4)}
    busy[1]["data"] += 0.05
    for rank in (2, 3):
        busy[rank]["forward"] += 0.2
    groups = {0: "pp0", 1: "pp0", 2: "pp1", 3: "pp1"}

    assert judge(synchronous(busy), peer_groups=groups).late == ()


def test_unequal_groups_are_charged_before_late_ranks() -> None:
    """A late rank of the heavier group pays for its own excess, not for the groups' difference."""
    busy = {rank: dict(HEALTHY) for rank in range(6)}
    for rank in (3, 4, 5):
        busy[rank]["forward"] += 0.1
    busy[5]["data"] += 0.2
    groups = {rank: "pp0" if rank < 3 else "pp1" for rank in busy}
    verdict = judge(synchronous(busy), peer_groups=groups)

    assert [(late.rank, late.stage) for late in verdict.late] == [(5, "data")]
    step = sum(HEALTHY.values()) + 0.1 + 0.2 + 0.02
    assert verdict.group_gpus_lost == pytest.approx(3 * 0.1 / step)
    assert verdict.late[0].gpus_lost == pytest.approx(5 * 0.2 / step)


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ({}, "single_rank"),
        ({0: HEALTHY | {"sync": 0.1}}, "single_rank"),
        ({0: HEALTHY | {"sync": 0.1}, 1: HEALTHY}, "no_sync"),
        ({0: {"sync": 0.1}, 1: {"sync": 0.1}}, "no_busy_time"),
    ],
)
def test_what_cannot_be_judged_says_why(ranks: Ranks, reason: str) -> None:
    """Without peers, without a measured wait or without work there is a reason and no name."""
    verdict = judge(ranks)

    assert verdict.reason == reason
    assert verdict.late == ()

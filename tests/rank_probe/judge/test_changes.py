"""The judge says what changed where a whole peer group takes longer than it did."""

import pytest

from tests.alerts.jobs import STAGE_SHARES, Fault, Job
from tests.rank_probe.judged import Judged, judged

SINCE = 300.0


def onset(found: Judged) -> float:
    """Since when the one change is that the last verdict tells, since the job's start."""
    (change,) = found.last.changes
    return found.verdicts[-1][0] - change.since_seconds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "stage"), [(8, "forward"), (4, "data"), (2, "backward")])
def test_stage_of_a_group_that_became_slower_is_told(ranks: int, stage: str, seed: int) -> None:
    """Interference on one pipeline stage: its forward takes three times what it took until then."""
    faults = tuple(
        Fault(rank, stage, 0.5, start_seconds=SINCE) for rank in range(ranks // 2, ranks)
    )
    job = Job(ranks=ranks, seed=seed, seconds=500, group_work=(1.0, 1.0), faults=faults)
    found = judged(job)
    (change,) = found.last.changes

    assert found.named == set()
    assert (change.peer_group, change.stage) == ("g1", stage)
    share = STAGE_SHARES[stage]
    assert change.ratio == pytest.approx((share + 0.5) / share, rel=0.05)
    assert onset(found) == pytest.approx(SINCE, abs=3)


def test_change_is_told_within_a_minute_of_steps_and_stays() -> None:
    """It is one change with one stage for as long as it lasts."""
    faults = tuple(Fault(rank, "data", 0.5, start_seconds=SINCE) for rank in range(4))
    found = judged(Job(seed=4, seconds=900, faults=faults))
    told = [(at, change) for at, verdict in found.verdicts for change in verdict.changes]

    assert SINCE < told[0][0] <= SINCE + 60
    assert {(change.peer_group, change.stage) for _, change in told} == {("g0", "data")}
    assert len(told) == sum(at >= told[0][0] for at, _ in found.verdicts)


def test_change_that_is_over_is_told_no_more() -> None:
    """A storage that was throttled for five minutes is none a minute later."""
    faults = tuple(
        Fault(rank, "data", 0.5, start_seconds=SINCE, end_seconds=600) for rank in range(4)
    )
    found = judged(Job(seed=4, seconds=800, faults=faults))

    assert any(verdict.changes for _, verdict in found.verdicts)
    assert not any(verdict.changes for at, verdict in found.verdicts if at > 660)


def test_slower_as_a_whole_is_nobodys_fault() -> None:
    """All ranks take half as long again in every stage: the largest says it."""
    found = judged(Job(ranks=8, seed=1, seconds=600, slow_together_seconds=SINCE))
    (change,) = found.last.changes

    assert found.named == set()
    assert (change.peer_group, change.stage) == ("g0", "backward")
    assert change.ratio == pytest.approx(1.5, rel=0.05)
    assert onset(found) == pytest.approx(SINCE, abs=3)


def test_unmeasured_wait_hides_no_change() -> None:
    """What a stage took is known without the wait too."""
    faults = tuple(Fault(rank, "data", 0.5, start_seconds=SINCE) for rank in range(4))
    found = judged(Job(seed=4, seconds=500, sync_measured=False, faults=faults))

    assert [change.stage for change in found.last.changes] == ["data"]


@pytest.mark.parametrize(("excess", "told"), [(0.1, False), (0.2, True)])
def test_change_is_from_a_seventh_on(excess: float, told: bool) -> None:
    """All ranks together vary by more than one does against the others."""
    faults = tuple(Fault(rank, "forward", excess, start_seconds=SINCE) for rank in range(4))
    found = judged(Job(seed=4, seconds=600, faults=faults))

    assert bool(found.last.changes) is told


@pytest.mark.parametrize(
    "job",
    [
        Job(seconds=900),
        Job(seconds=900, stage_noise=0.2, common_noise=0.3),
        Job(seconds=900, faults=(Fault(None, "data", 0.5),)),
        Job(seconds=900, faults=(Fault(1, "data", 0.5, start_seconds=SINCE),)),
        Job(seconds=900, faults=(Fault(1, "checkpoint", 10, every=60, start_seconds=SINCE),)),
    ],
)
def test_noise_and_late_ranks_are_no_change(job: Job) -> None:
    """The usual time of the group stays as it was."""
    assert not any(verdict.changes for _, verdict in judged(job).verdicts)

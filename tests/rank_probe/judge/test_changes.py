"""The judge says what changed where a whole peer group takes longer than it did."""

import pytest

from tests.alerts.jobs import STAGE_SHARES, Fault, Job
from tests.rank_probe.judged import judged

SINCE = 300.0


def slower(ranks: range, stage: str, ratio: float, until: float = 1e9) -> tuple[Fault, ...]:
    return tuple(Fault(rank, stage, ratio, 1, SINCE, until) for rank in ranks)


def half_slower(ranks: int, stage: str, seed: int) -> Job:
    faults = slower(range(ranks // 2, ranks), stage, 0.5)
    return Job(ranks=ranks, seed=seed, seconds=500, group_work=(1.0, 1.0), faults=faults)


def takes(stage: str, longer: float) -> float:
    """Return how many times as long *stage* takes with *longer* more of a step."""
    return 1 + longer / STAGE_SHARES[stage]


@pytest.mark.parametrize(
    ("job", "group", "stage", "ratio"),
    [
        # Interference on one pipeline stage: its forward takes three times what it took.
        *(
            (half_slower(ranks, stage, seed), "g1", stage, takes(stage, 0.5))
            for ranks, stage in [(8, "forward"), (4, "data"), (2, "backward")]
            for seed in range(3)
        ),
        # All ranks take half as long again in every stage: the largest says it.
        (Job(ranks=8, seed=1, seconds=600, slow_together_seconds=SINCE), "g0", "backward", 1.5),
        # What a stage took is known without the wait too.
        (
            Job(seed=4, seconds=500, sync_measured=False, faults=slower(range(4), "data", 0.5)),
            *("g0", "data", takes("data", 0.5)),
        ),
        (
            Job(seed=4, seconds=600, faults=slower(range(4), "forward", 0.2)),
            *("g0", "forward", takes("forward", 0.2)),
        ),
    ],
)
def test_stage_of_a_group_that_became_slower_is_told(
    job: Job, group: str, stage: str, ratio: float
) -> None:
    """It is nobody's fault: the group, its stage and how much longer that takes, since when."""
    found = judged(job)
    (change,) = found.last.changes

    assert found.named == set()
    assert (change.peer_group, change.stage) == (group, stage)
    assert change.ratio == pytest.approx(ratio, rel=0.05)
    onset = found.verdicts[-1][0] - change.since_seconds
    assert onset == pytest.approx(SINCE, abs=3)


def test_change_is_told_from_a_minute_of_steps_on_until_it_is_over() -> None:
    """A storage that was throttled for five minutes is one change with one stage meanwhile."""
    found = judged(Job(seed=4, seconds=800, faults=slower(range(4), "data", 0.5, 600)))
    told = [(at, change) for at, verdict in found.verdicts for change in verdict.changes]

    assert SINCE < told[0][0] <= SINCE + 60
    assert 600 < told[-1][0] < 660
    assert {(change.peer_group, change.stage) for _, change in told} == {("g0", "data")}
    assert len(told) == sum(told[0][0] <= at <= told[-1][0] for at, _ in found.verdicts)


@pytest.mark.parametrize(
    "job",
    [
        Job(seconds=900),
        Job(seconds=900, stage_noise=0.2, common_noise=0.3),
        Job(seconds=900, faults=(Fault(None, "data", 0.5),)),
        Job(seconds=900, faults=(Fault(1, "data", 0.5, start_seconds=SINCE),)),
        Job(seconds=900, faults=(Fault(1, "checkpoint", 10, every=60, start_seconds=SINCE),)),
        # All ranks together vary by more than one does against the others.
        Job(seed=4, seconds=600, faults=slower(range(4), "forward", 0.1)),
    ],
)
def test_noise_and_late_ranks_are_no_change(job: Job) -> None:
    """The usual time of the group stays as it was."""
    assert not any(verdict.changes for _, verdict in judged(job).verdicts)

"""What the simulated ranks report adds up, as it does for real ranks."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from fleet_simulator.faults import BY_NAME, parse
from fleet_simulator.plan import JobPlan
from fleet_simulator.ranks import SimulatedRank
from fleet_simulator.training import Judged, RepeatedVerdict, Training
from rank_probe.wire.snapshot import Snapshot

LATE_RANK = 6


def training(*faults: str) -> Training:
    return Training(JobPlan("job", 0, 2, 4, tuple(parse(fault) for fault in faults)))


def reports(
    run: Training, rank: int, times: Iterable[float], said: RepeatedVerdict | None = None
) -> list[Snapshot]:
    simulated = SimulatedRank(run, rank, f"GPU-{rank}", unix_start=1e9)
    return [simulated.snapshot(at, said) for at in times]


def mean_step(first: Snapshot, last: Snapshot) -> dict[str, float]:
    steps = last.steps - first.steps
    return {
        stage: (last.stage_seconds[stage] - first.stage_seconds.get(stage, 0.0)) / steps
        for stage in last.stage_seconds
    }


@pytest.mark.parametrize("kind", BY_NAME)
def test_counters_never_decrease(kind: str) -> None:
    """Whatever is wrong with a job, Prometheus sees no counter reset."""
    for rank in (0, LATE_RANK):
        for one, next_one in pairwise(reports(training(f"{kind}:node=1,gpu=2"), rank, range(60))):
            assert next_one.steps >= one.steps
            assert next_one.busy_seconds >= one.busy_seconds
            assert (next_one.gc_pause_seconds or 0) >= (one.gc_pause_seconds or 0)
            assert (next_one.tokens or 0) >= (one.tokens or 0)
            for stage, seconds in one.stage_seconds.items():
                assert next_one.stage_seconds[stage] >= seconds


def test_stages_add_up_to_the_wall_time() -> None:
    """Own work and wait fill the steps of each rank, late or not."""
    run = training("loader:node=1,gpu=2")
    for rank in (0, LATE_RANK):
        first, last = reports(run, rank, (0.0, 300.0))
        wall = (last.steps - first.steps) * run.phase(0.0).step_seconds

        assert sum(mean_step(first, last).values()) * (last.steps - first.steps) == pytest.approx(
            wall, rel=0.01
        )


def test_late_rank_works_longest_and_waits_least() -> None:
    """The one idea: the delay of one rank shows as waiting on all others."""
    run = training("loader:node=1,gpu=2")
    steps = {rank: mean_step(*reports(run, rank, (0.0, 300.0))) for rank in range(8)}

    assert min(steps, key=lambda rank: steps[rank]["sync"]) == LATE_RANK
    assert max(steps, key=lambda rank: steps[rank]["data"]) == LATE_RANK


def test_fault_begins_when_it_was_asked_to() -> None:
    """Before its onset the job is healthy, after it its steps are longer."""
    run = training("thermal:node=1,gpu=2,after=60s")
    before, onset, after = reports(run, LATE_RANK, (0.0, 60.0, 120.0))

    assert mean_step(onset, after)["backward"] > 1.3 * mean_step(before, onset)["backward"]
    assert after.steps - onset.steps < onset.steps - before.steps


def test_stuck_rank_stays_in_its_stage_while_the_others_wait() -> None:
    """No rank steps, and each says how long it has been where it is."""
    run = training("hang:node=1,gpu=2,after=10s")
    stuck, waiting = (reports(run, rank, (5.0, 15.0, 40.0)) for rank in (LATE_RANK, 0))

    assert stuck[1].steps == stuck[2].steps == waiting[2].steps > stuck[0].steps - 1
    assert (stuck[2].stage, waiting[2].stage) == ("data", "sync")
    assert stuck[2].stage_elapsed_seconds == waiting[2].stage_elapsed_seconds == 30.0


def test_job_that_becomes_slower_has_no_late_rank() -> None:
    """Every rank needs the same time more, so the judge names the change and nobody."""
    run = training("filer:after=0s")
    ranks = [mean_step(*reports(run, rank, (0.0, 300.0))) for rank in range(8)]
    before = mean_step(*reports(run, 0, (-300.0, 0.0)))
    said = Judged(run).at(300.0)
    assert said is not None
    (change,) = said.verdict.changes

    assert all(each["data"] == pytest.approx(2.5 * before["data"], rel=0.05) for each in ranks)
    assert all(each["sync"] == pytest.approx(before["sync"], rel=0.2) for each in ranks)
    assert (said.verdict.late, change.stage, change.since_seconds) == ((), "data", 300.0)
    assert change.ratio == pytest.approx(2.5)
    # 60 ms more in a step of 0.54 s, on eight GPUs.
    assert change.gpus == pytest.approx(8 * 0.06 / 0.6, rel=0.1)
    healthy = Judged(run).at(-5.0)
    assert healthy is not None
    assert healthy.verdict.changes == ()


def test_verdict_of_a_hung_job_grows_old() -> None:
    """Without steps there is nothing to judge: the last word stays that of before the hang."""
    run = training("hang:node=1,gpu=2,after=10s")
    said = Judged(run).at(100.0)
    (repeated,) = reports(run, 0, [100.0], said)

    assert repeated.verdict_age_seconds == pytest.approx(90.0, abs=0.1)
    assert repeated.verdict is not None
    assert repeated.verdict["late"] == []


@pytest.mark.parametrize(
    ("fault", "late", "ranks", "absent", "reason"),
    [
        ("loader:node=1,gpu=2", [(LATE_RANK, "data", "persistent")], 8, 0, ""),
        ("rotating", [], 8, 0, ""),
        ("missing:node=1", [], 4, 4, ""),
        ("nosync", [], 8, 0, "no_sync"),
    ],
)
def test_verdict_names_late_ranks_or_why_it_cannot(
    fault: str, late: list[tuple[int, str, str]], ranks: int, absent: int, reason: str
) -> None:
    """As the real judge: nobody is late in turn, and who was never seen is counted."""
    said = Judged(training(fault)).at(0.0)
    assert said is not None
    verdict = said.verdict

    assert [(each.rank, each.stage, each.kind) for each in verdict.late] == late
    assert (verdict.ranks, verdict.absent, verdict.reason or "") == ({"all": ranks}, absent, reason)


@pytest.mark.parametrize("fault", ["nojoin", "starting"])
def test_job_that_is_not_joined_has_no_verdict(fault: str) -> None:
    assert Judged(training(fault)).at(0.0) is None


def test_verdict_tells_what_waiting_costs() -> None:
    """The seven others wait for the late rank nearly all of its extra time; or in turn."""
    run = training("loader:node=1,gpu=2")
    said, rotating = Judged(run).at(0.0), Judged(training("rotating")).at(0.0)
    assert said is not None
    assert rotating is not None

    lost = 7 * run.phase(0.0).extra(LATE_RANK)["data"] / run.phase(0.0).step_seconds
    assert said.verdict.late[0].gpus_lost == pytest.approx(lost, rel=0.1)
    assert said.verdict.slowdown == pytest.approx(1.5, rel=0.2)
    assert rotating.verdict.gpus_lost["rotating"] > 1.5


def test_longer_samples_are_counted_in_tokens() -> None:
    """A rank with uneven batches trains on more tokens in as many steps."""
    (mine,), (peers,) = (
        reports(training("batches:node=1,gpu=2"), rank, [0.0]) for rank in (LATE_RANK, 5)
    )

    assert mine.steps == peers.steps
    # The fault is 300 s old, of an hour.
    assert 1.02 < (mine.tokens or 0) / (peers.tokens or 1) < 1.3


def test_rank_without_a_measured_wait_has_none() -> None:
    """Where collectives are not timed, a rank that waits looks like one that works."""
    first, last = reports(training("nosync"), 0, (0.0, 60.0))

    assert "sync" not in mean_step(first, last)


def test_last_step_is_the_end_of_one() -> None:
    """The age of the last step swings between nothing and one step, as on real ranks."""
    run = training()
    for at in (0.0, 0.1, 7.3, 100.0):
        ended = run.last_step_seconds(at)

        assert at - run.phase(at).step_seconds <= ended <= at
        assert run.steps(ended + 1e-6) == run.steps(at) == run.steps(ended - 1e-6) + 1


@pytest.mark.parametrize(("kind", "has_lines"), [("loader", True), ("thermal", False)])
def test_line_of_code_is_named_where_code_is_slow(kind: str, has_lines: bool) -> None:
    """A hot GPU is nobody's line; a slow loader is."""
    run = training(f"{kind}:node=1,gpu=2")
    said = Judged(run).at(0.0)
    (mine,), (peers,) = (reports(run, rank, [0.0], said) for rank in (LATE_RANK, 0))

    assert bool(mine.late_lines) == has_lines
    assert not peers.late_lines

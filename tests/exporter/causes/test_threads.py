"""What threads do beside their peers': too little CPU, more work, code that waits or runs."""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.exporter.causes.planted import (
    LINE,
    States,
    at,
    evidence,
    found,
    lateness,
    named,
    why,
)

Changes = Mapping[str, float | None]
QUEUE, RUNS, QUOTA = "main_run_queue_ratio", "main_running_ratio", "cpu_quota_throttled_ratio"
WORKERS_QUEUE, TOKENS = "workers_run_queue_ratio", "tokens_per_step"
MORE_WORK: Final = {TOKENS: 12_288.0, "sm_clock_hertz": 1.6e9}
BUSY: Final = {QUEUE: 0.3, RUNS: 0.3, "node_cpu_waiting_ratio": 0.95}
HALF: Final = at("forward", running=0.5, cpu_queue=0.5)


@pytest.mark.parametrize(
    ("extra", "changes", "usual", "states", "cause"),
    [
        ({"forward": 0.3}, {QUEUE: 0.34}, {}, HALF, "cpu run_queue"),
        # However long its run queue is, a rank that sleeps is not short of CPU.
        (
            {"data": 0.3},
            {QUEUE: 0.6, QUOTA: 0.9},
            {QUEUE: 0.3},
            at("data", sleep=0.95, cpu_queue=0.05),
            "code sleep",
        ),
        # Nobody knows how long its peers sleep; how long they wait for a CPU is known.
        (
            {"forward": 0.2},
            {QUEUE: 0.13},
            {},
            at("forward", sleep=0.5, cpu_queue=0.3),
            "cpu run_queue",
        ),
        # On a machine without a free CPU, who runs more waits more: a decoder in one rank.
        (
            {"data": 0.5},
            {QUEUE: 0.4, RUNS: 0.5},
            {QUEUE: 0.1, RUNS: 0.12},
            at("data", running=0.55, cpu_queue=0.45),
            "code running",
        ),
        # A moment's wait each time its peers wake is none that a thread must have that runs long.
        (
            {"forward": 0.5},
            {RUNS: 0.3, QUEUE: 0.3},
            {RUNS: 0.02, QUEUE: 0.015},
            HALF,
            "cpu run_queue",
        ),
        # Where the time on a CPU is not known, queues are compared.
        ({"forward": 0.3}, {QUEUE: 0.34}, {RUNS: None}, (), "cpu run_queue"),
        ({"forward": 0.3}, {QUEUE: 0.34}, {RUNS: 0.0}, (), "cpu run_queue"),
        # A healthy rank uses up no quota, which needs no peers; a run queue cannot be told.
        (
            {"forward": 0.3},
            {QUOTA: 0.9, QUEUE: 0.9},
            {QUOTA: None, QUEUE: None},
            (),
            "cpu throttled",
        ),
        ({"forward": 0.3}, {QUEUE: 0.9}, {QUEUE: None}, (), "unknown "),
        # Where who waits for others sleeps, the time for which all run is known.
        (
            {"forward": 0.2},
            {RUNS: 0.95, "step_seconds": 0.6},
            {RUNS: 0.75, "step_seconds": 0.6},
            at("forward", running=1.0),
            "code running",
        ),
        # Two thirds of 180 ms are more than the excess of 50: it slept before it was late.
        (
            {"forward": 0.1},
            {},
            {},
            at("forward", sleep=0.66, running=0.17, cpu_queue=0.17),
            "unknown ",
        ),
        # Another thread has the interpreter's lock, and runs: that is not too little CPU.
        ({"other": 0.35}, {RUNS: 0.3}, {}, at("other", lock=0.9, running=0.1), "code lock"),
        # It runs because the GPU, or the CPU, is slow.
        *(
            ({"forward": 0.3}, {figure: value}, {}, at("forward", running=1.0), cause)
            for figure, value, cause in (
                ("sm_clock_hertz", 1.41e9, "slow_device clocks"),
                ("gpu_foreign_processes", 1.0, "foreign_process "),
                (QUOTA, 0.9, "cpu throttled"),
                ("cpus_near_gpu_ratio", 0.0, "cpu numa"),
            )
        ),
        # More work heats a GPU and lowers its clock, and a thread that waits for it may sleep.
        *(
            ({"forward": 0.1, "backward": 0.2}, MORE_WORK, {}, states, "uneven_batches ")
            for states in ((), at("forward", sleep=1.0) + at("backward", sleep=1.0))
        ),
        # Kind of evidence decides only between causes that explain as much.
        ({"forward": 0.4}, {TOKENS: 13_107.0}, {}, at("forward", sleep=0.9), "code sleep"),
        # Samples count where tokens are not counted.
        ({"forward": 0.3}, {"samples_per_step": 24.0}, {TOKENS: None}, (), "uneven_batches "),
        ({"forward": 0.3}, {"samples_per_step": 24.0}, {}, (), "unknown "),
        # A stage that its peers have too is not the cause, but what needs one.
        *(
            ({stage: 0.4}, {}, {f"{stage}_seconds": 0.1}, states, cause)
            for stage in ("checkpoint", "eval")
            for states, cause in ((at(stage, sleep=1.0), "code sleep"), ((), "unknown "))
        ),
        ({"compute": 0.4}, {}, {}, (), "unknown "),
    ],
)
def test_what_a_thread_does_decides_between_causes(
    extra: Mapping[str, float],
    changes: Mapping[str, float],
    usual: Changes,
    states: States,
    cause: str,
) -> None:
    """With what its peers have: the surest of those that account for most of the excess."""
    assert " ".join(named(found(extra, changes, usual=usual, states=states))) == cause


@pytest.mark.parametrize("own", [0.25, 0.3, 0.35])
@pytest.mark.parametrize("states", [(), HALF])
def test_wait_that_all_share_is_nobodys_cause(own: float, states: States) -> None:
    """On a machine where all ranks wait for a CPU alike, though the rank is hardly late."""
    assert found({"forward": 0.06}, {QUEUE: own}, usual=BUSY, states=states).cause != "cpu"


def test_used_up_quota_is_why_it_waits() -> None:
    """It explains its run queue, too."""
    cause = found({"forward": 0.3}, {QUOTA: 0.9, QUEUE: 0.4}, states=HALF)

    assert named(cause) == ("cpu", "throttled")
    assert (cause.others[0].cause, cause.others[0].detail) == ("cpu", "run_queue")


@pytest.mark.parametrize(("own", "share"), [(0.4, 0.70), (1.0, 0.995), (7.0, 0.995)])
def test_workers_without_cpus_take_as_much_longer(own: float, share: float) -> None:
    """A third of the time that its peers have a CPU is missing; more than all cannot be."""
    cause = found({"data": 0.9}, {WORKERS_QUEUE: own}, usual={WORKERS_QUEUE: 0.1})

    assert named(cause) == ("cpu", "workers_run_queue")
    assert cause.share == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("stage", ["checkpoint", "eval"])
def test_stage_that_no_peer_has_is_an_extra_duty(stage: str) -> None:
    """Only then; peers of whom nothing is known may have it too."""
    extra = {stage: 0.25}
    cause = found(extra, states=at(stage, sleep=1.0))

    assert named(cause) == ("extra_duties", stage)
    assert "it spends 125 ms a step " in cause.sentence
    assert cause.sentence.endswith(", its peers none")
    assert (cause.figure, cause.peers_value) == (f"{stage}_seconds", 0.0)
    assert why(lateness(extra), evidence(extra, {}), {}).cause == "unknown"


STATES = ("sleep", "lock", "socket", "pipe", "blocked", "running", "gpu")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("usual", [{}, BUSY])
def test_what_its_thread_does_is_told_with_the_line(state: str, usual: dict[str, float]) -> None:
    """On a machine where all ranks wait for a CPU alike, too."""
    cause = found({"other": 0.35}, usual, usual=usual, states=at("other", LINE, **{state: 0.9}))

    assert named(cause) == ("code", state)
    assert cause.sentence.endswith(f"`{LINE}` for 180 ms a step")


@pytest.mark.parametrize("state", ["running", "gpu"])
def test_what_peers_do_as_well_is_no_cause(state: str) -> None:
    """A thread that runs in forward, as all do, with a third more time, may run a slow GPU."""
    cause = found({"forward": 0.1}, states=at("forward", LINE, **{state: 1.0}))

    assert cause.cause == "unknown"
    assert [each.cause for each in cause.others] == ["code"]


@pytest.mark.parametrize(("queued", "share"), [(0.0, 0.4), (0.5, 0.6), (9.0, 1.0)])
def test_waiting_for_a_cpu_is_work_as_far_as_all_wait(queued: float, share: float) -> None:
    """A thread that waits longer than its peers, each time it runs, is short of CPUs."""
    usual = {RUNS: 0.1, QUEUE: 0.1 * queued, "eval_seconds": 0.001}
    states = at("eval", running=0.4, cpu_queue=0.6)
    cause = found({"eval": 0.9}, {RUNS: 0.0, QUEUE: 0.0}, usual=usual, states=states)
    told = {(each.cause, each.detail): each.share for each in cause.others}
    told[named(cause)] = cause.share

    assert told["code", "running"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("wait", "told"), [(0.05, "code"), (0.15, "code"), (0.25, "cpu")])
def test_thread_that_runs_more_and_waits_for_a_cpu_is_told_by_the_larger_part(
    wait: float, told: str
) -> None:
    """Running may take the place of a sleep; that it has no CPU for half of it is no work."""
    usual = {RUNS: 0.05, QUEUE: 0.0, "step_seconds": 0.75}
    changes = {RUNS: 0.4, QUEUE: wait, "step_seconds": 0.75}
    states = at("forward", running=0.6, cpu_queue=0.4)

    cause = found({"forward": 0.5}, changes, usual=usual, states=states)
    assert cause.cause == told
    assert {"cpu", "code"} <= {cause.cause, *(each.cause for each in cause.others)}

"""More work than the peers have, and code that waits or runs."""

import pytest

from exporter.causes.explain import explain
from tests.exporter.causes.planted import evidence, found, lateness, named

LINE = "SlowLog.emit (train.py:12)"
BUSY = {"main_run_queue_ratio": 0.3, "main_running_ratio": 0.3}


def test_garbage_collection_is_found() -> None:
    """As a time that its peers do not spend."""
    runs = [("other", "running", 1.0, "Cache.put (metrics.py:17)")]
    cause = found({"other": 0.2}, {"gc_ratio": 0.2}, states=runs)

    assert named(cause) == ("gc", "")
    assert cause.sentence == "it spends 20 % of the time collecting garbage, its peers 0.2 %"
    alike = found({"other": 0.2}, {"gc_ratio": 0.2}, usual={"gc_ratio": 0.2})
    assert alike.cause == "unknown"
    assert named(found({"other": 0.2}, {"gc_ratio": 0.2}, usual={"gc_ratio": None})) == ("gc", "")


def test_more_tokens_are_found_before_what_they_do() -> None:
    """More work heats a GPU and lowers its clock; a thread that waits for it may sleep."""
    late = {"forward": 0.1, "backward": 0.2}
    more = {"tokens_per_step": 8192 * 1.5, "sm_clock_hertz": 1.6e9}
    asleep = [("forward", "sleep", 1.0, LINE), ("backward", "sleep", 1.0, LINE)]

    for states in ((), asleep):
        cause = found(late, more, states=states)
        assert named(cause) == ("uneven_batches", "")
        assert cause.sentence == "it processes 12,288 tokens a step, its peers 8,151"


def test_few_more_tokens_are_not_why_it_sleeps() -> None:
    """Kind of evidence decides only between causes that explain as much."""
    asleep = [("forward", "sleep", 0.9, LINE)]
    cause = found({"forward": 0.4}, {"tokens_per_step": 8192 * 1.6}, states=asleep)

    assert named(cause) == ("code", "sleep")
    assert [each.cause for each in cause.others] == ["uneven_batches"]


def test_samples_count_where_tokens_are_not_counted() -> None:
    """Of two, the better one."""
    late = {"forward": 0.1, "backward": 0.2}
    more = {"samples_per_step": 24.0}

    cause = found(late, more, usual={"tokens_per_step": None})
    assert cause.sentence == "it processes 24 samples a step, its peers 16"
    assert found(late, more).cause == "unknown"


@pytest.mark.parametrize("stage", ["checkpoint", "eval"])
def test_stage_that_no_peer_has_is_an_extra_duty(stage: str) -> None:
    """Only then: a stage that its peers have too is not the cause, but what needs one."""
    cause = found({stage: 0.25}, states=[(stage, "sleep", 1.0, LINE)])

    assert named(cause) == ("extra_duties", stage)
    assert "it spends 125 ms a step " in cause.sentence
    assert cause.sentence.endswith(", its peers none")
    assert (cause.figure, cause.peers_value) == (f"{stage}_seconds", 0.0)
    usual = {f"{stage}_seconds": 0.1}
    assert named(found({stage: 0.4}, usual=usual, states=[(stage, "sleep", 1.0, LINE)])) == (
        "code",
        "sleep",
    )
    assert found({stage: 0.4}, usual=usual).cause == "unknown"
    assert found({"compute": 0.4}).cause == "unknown"


def test_duties_of_peers_that_are_not_known_cannot_be_told() -> None:
    """They may write checkpoints too."""
    extra = {"checkpoint": 0.25}
    cause = explain(lateness(extra), evidence(extra, {}), {})

    assert cause is not None
    assert cause.cause == "unknown"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("sleep", f"it sleeps in `{LINE}` for 180 ms a step"),
        ("lock", f"it waits for a lock in `{LINE}` for 180 ms a step"),
        ("socket", f"it waits for a socket in `{LINE}` for 180 ms a step"),
        ("pipe", f"it waits for another process in `{LINE}` for 180 ms a step"),
        ("blocked", f"it is blocked in `{LINE}` for 180 ms a step"),
        ("running", f"it runs `{LINE}` for 180 ms a step"),
        ("gpu", f"it waits for its GPU in `{LINE}` for 180 ms a step"),
    ],
)
def test_what_its_thread_does_is_told_with_the_line(state: str, says: str) -> None:
    """On a machine where all ranks wait for a CPU alike, too."""
    for usual in ({}, BUSY):
        cause = found(
            {"other": 0.35}, dict(usual), usual=dict(usual), states=[("other", state, 0.9, LINE)]
        )
        assert named(cause) == ("code", state)
        assert cause.sentence == says


def test_what_peers_do_as_well_is_no_cause() -> None:
    """A thread that runs in forward, as all do, with a third more time, may run a slow GPU."""
    for state in ("running", "gpu"):
        cause = found({"forward": 0.1}, states=[("forward", state, 1.0, "Model.forward (m.py:3)")])
        assert cause.cause == "unknown"
        assert [each.cause for each in cause.others] == ["code"]


def test_thread_that_runs_longer_than_its_peers_is_the_cause() -> None:
    """Where who waits for others sleeps, the time for which all run is known."""
    runs = [("forward", "running", 1.0, "Model.forward (m.py:3)")]
    changes = {"main_running_ratio": 0.95, "step_seconds": 0.6}
    usual: dict[str, float | None] = {"main_running_ratio": 0.75, "step_seconds": 0.6}

    assert named(found({"forward": 0.2}, changes, usual=usual, states=runs)) == ("code", "running")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"sm_clock_hertz": 1.41e9}, "slow_device"),
        ({"gpu_foreign_processes": 1.0}, "foreign_process"),
        ({"cpu_quota_throttled_ratio": 0.9}, "cpu"),
        ({"cpus_near_gpu_ratio": 0.0}, "cpu"),
    ],
)
def test_better_evidence_goes_before_a_thread_that_runs(
    changes: dict[str, float], cause: str
) -> None:
    """It runs because the GPU, or the CPU, is slow."""
    runs = [("forward", "running", 1.0, "Model.forward (m.py:3)")]

    assert found({"forward": 0.3}, changes, states=runs).cause == cause


def test_interpreter_lock_is_a_wait_for_a_lock() -> None:
    """Another thread of the process has it, and runs: that is not too little CPU."""
    states = [("other", "lock", 0.9, LINE), ("other", "running", 0.1, LINE)]
    cause = found({"other": 0.35}, {"main_running_ratio": 0.3}, states=states)

    assert named(cause) == ("code", "lock")
    assert "which thread holds it" in cause.first_action


@pytest.mark.parametrize(("queued", "share"), [(0.0, 0.4), (0.5, 0.6), (9.0, 1.0)])
def test_waiting_for_a_cpu_is_work_as_far_as_all_wait(queued: float, share: float) -> None:
    """A thread that waits longer than its peers, each time it runs, is short of CPUs."""
    usual: dict[str, float | None] = {
        "main_running_ratio": 0.1,
        "main_run_queue_ratio": 0.1 * queued,
    }
    changes = {"main_running_ratio": 0.0, "main_run_queue_ratio": 0.0}
    states = [("eval", "running", 0.4, LINE), ("eval", "cpu_queue", 0.6, LINE)]
    usual["eval_seconds"] = 0.001
    cause = found({"eval": 0.9}, changes, usual=usual, states=states)
    told = {(each.cause, each.detail): each.share for each in cause.others}
    told[named(cause)] = cause.share

    assert told["code", "running"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("wait", "told"), [(0.05, "code"), (0.15, "code"), (0.25, "cpu")])
def test_thread_that_runs_more_and_waits_for_a_cpu_is_told_by_the_larger_part(
    wait: float, told: str
) -> None:
    """Running may take the place of a sleep; that it has no CPU for half of it is no work."""
    states = [("forward", "running", 0.6, LINE), ("forward", "cpu_queue", 0.4, LINE)]
    usual: dict[str, float | None] = {"main_running_ratio": 0.05, "main_run_queue_ratio": 0.0}
    changes = {"main_running_ratio": 0.4, "main_run_queue_ratio": wait}
    usual["step_seconds"] = changes["step_seconds"] = 0.75

    cause = found({"forward": 0.5}, changes, usual=usual, states=states)
    assert cause.cause == told
    assert {"cpu", "code"} <= {cause.cause, *(each.cause for each in cause.others)}


def test_wait_of_peers_that_hardly_run_says_nothing_of_one_that_does() -> None:
    """A moment's wait each time they wake is none that a thread must have that runs for long."""
    states = [("forward", "running", 0.5, LINE), ("forward", "cpu_queue", 0.5, LINE)]
    usual: dict[str, float | None] = {"main_running_ratio": 0.02, "main_run_queue_ratio": 0.015}
    changes = {"main_running_ratio": 0.3, "main_run_queue_ratio": 0.3}

    cause = found({"forward": 0.5}, changes, usual=usual, states=states)
    assert named(cause) == ("cpu", "run_queue")


def test_sleep_in_a_stage_in_which_peers_sleep_as_well_is_not_told() -> None:
    """Two thirds of 180 ms are more than the excess of 50: it slept before it was late."""
    states = [
        ("forward", "sleep", 0.66, LINE),
        ("forward", "running", 0.17, LINE),
        ("forward", "cpu_queue", 0.17, LINE),
    ]

    assert found({"forward": 0.1}, states=states).cause == "unknown"

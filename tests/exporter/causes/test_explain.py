"""The best cause wins if it accounts for half of the excess; otherwise the cause is not known."""

from collections.abc import Mapping
from typing import Final

import pytest

from exporter.causes.explain import MOST_GUESSES, ROWS, explain
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import NODE, PERSISTENT
from rankskew.diagnose.advice import advice
from tests.exporter.causes.planted import (
    FACTS,
    LINE,
    TOLD,
    States,
    at,
    evidence,
    found,
    lateness,
    named,
    peers,
    why,
)


def test_without_any_evidence_there_is_nothing_to_say() -> None:
    """Not even that the cause is not known."""
    late = Lateness("data", PERSISTENT, 0.2, {"data": 1.0})

    assert explain(late, Evidence({}), peers()) is None
    assert explain(late, Evidence({"gc_ratio": float("nan")}), None) is None
    # Nor of workers for which nobody waits.
    workers = [ThreadState("data", "sleep", 1.0)]
    assert explain(late, Evidence({}, worker_states=workers), peers()) is None


def test_two_half_causes_are_no_cause() -> None:
    """Both are told, with their shares."""
    cause = found(
        {"forward": 0.18, "data": 0.19},
        {"gpu_foreign_processes": 1.0},
        states=at("data", sleep=0.55),
    )

    assert cause.cause == "unknown"
    assert cause.share == 0
    assert [each.cause for each in cause.others] == ["foreign_process", "code"]
    assert [each.share for each in cause.others] == pytest.approx([0.48, 0.20], abs=0.02)
    assert cause.sentence.startswith("nothing that was measured accounts for half of it: it shares")
    assert " % of it)" in cause.sentence
    assert "NODE" in cause.first_action
    nothing = found({"forward": 0.3})
    assert nothing.sentence == "nothing that was measured accounts for half of it"
    assert (nothing.others, nothing.figure, nothing.value) == ((), "", None)


def test_next_best_guesses_are_told_with_a_cause() -> None:
    """At most two, each once, and none of the cause itself or of less than a tenth."""
    changes = {
        "gpu_foreign_processes": 1.0,
        "pcie_errors_per_second": 5.0,
        "nvlink_errors_per_second": 5.0,
        "read_bytes_per_second": 300e6,
        "major_faults_per_second": 500.0,
    }
    cause = found({"forward": 0.3, "data": 0.02}, changes)

    assert cause.cause == "foreign_process"
    assert [each.detail for each in cause.others] == ["pcie_errors", "nvlink_errors"]
    late_in_data = found({"forward": 0.2, "data": 0.4}, changes)
    assert named(late_in_data) == ("input", "reads")
    assert [each.cause for each in late_in_data.others] == ["foreign_process", "slow_device"]
    assert len(late_in_data.others) <= MOST_GUESSES


def test_most_peers_may_be_late_too() -> None:
    """A third of them is not: those are held against it."""
    usual = peers()
    for name, value in (("forward_seconds", 0.33), ("main_run_queue_ratio", 0.4)):
        usual[name] = Quantiles(usual[name].lower_third, value, value)
    usual["sm_clock_hertz"] = Quantiles(1.41e9, 1.41e9, 1.95e9)
    late = lateness({"forward": 0.4})

    waits = why(late, evidence({"forward": 0.4}, {"main_run_queue_ratio": 0.5}), usual)
    slow = why(late, evidence({"forward": 0.4}, {"sm_clock_hertz": 1.2e9}), usual)
    assert named(waits) == ("cpu", "run_queue")
    assert named(slow) == ("slow_device", "clocks")


def test_rank_alone_without_join_has_no_peers() -> None:
    """What its thread does, and what no healthy rank has, can still be told."""
    late = Lateness("data", PERSISTENT, 0.5, {"data": 1.0}, is_alone=True)
    asleep = Evidence({"gc_ratio": 0.01}, [ThreadState("data", "sleep", 0.9)])
    throttled = Evidence({"cpu_quota_throttled_ratio": 0.8, "sm_clock_hertz": 1e9})

    for said, cause in ((asleep, "code"), (throttled, "cpu")):
        assert why(late, said, None).cause == cause
        assert why(late, said, {}) == why(late, said, None)


def test_peers_of_zero_are_peers() -> None:
    """A clock of zero is no clock; a wait of zero is a good one."""
    usual = peers(main_run_queue_ratio=0.0, sm_clock_hertz=0.0, tokens_per_step=0.0)
    said = evidence({"forward": 0.3}, {"main_run_queue_ratio": 0.4, "sm_clock_hertz": 0.0})
    cause = why(lateness({"forward": 0.3}), said, usual)

    assert named(cause) == ("cpu", "run_queue")
    assert cause.peers_value == 0


@pytest.mark.parametrize("cause", sorted({row.cause for row in ROWS}))
def test_every_cause_has_advice(cause: str) -> None:
    """And every detail of it: what is told is also known what to do about."""
    entry = advice()[cause]
    details = {row.detail for row in ROWS if row.cause == cause}

    assert {detail for action in entry.actions for detail in action.details} <= details


EXTRA = {"input": {"data": 0.25}, "gc": {"other": 0.2}}
ON_GPU = {"forward": 0.1, "backward": 0.2}


@pytest.mark.parametrize(("cause", "changes"), TOLD)
def test_figure_tells_the_cause(cause: tuple[str, str], changes: dict[str, float]) -> None:
    """Unless its peers have the same; a node's only if all its ranks are late, or it has one.

    Also if nobody measured the stages: the judge says in which of them it is late.
    """
    extra = EXTRA.get(cause[0], ON_GPU)
    of_node = next(iter(changes)).startswith("node_")

    said = found(extra, changes, facts=FACTS, of_node=of_node)
    assert named(said) == cause
    assert said.value == changes[said.figure]
    assert found(extra, changes, usual=dict(changes), of_node=of_node).cause == "unknown"
    known = evidence(extra, changes, facts=FACTS)
    bare = {name: known.figures[name] for name in known.figures if "_seconds" not in name}
    unmeasured = Evidence({**bare, **changes}, facts=FACTS)
    assert named(why(lateness(extra, NODE), unmeasured, peers())) == cause
    if of_node:
        assert found(extra, changes, facts=FACTS).cause == "unknown"
        assert named(why(lateness(extra, is_alone=True), known, peers())) == cause


def test_clock_that_explains_little_is_a_guess() -> None:
    """5 % of the clock are no third of its time, and a foreign process is told before it."""
    cause = found(ON_GPU, {"sm_clock_hertz": 1.85e9})
    both = {"sm_clock_hertz": 1.85e9, "gpu_foreign_processes": 1.0}

    assert cause.cause == "unknown"
    assert [(each.cause, each.detail) for each in cause.others] == [("slow_device", "clocks")]
    assert 0.1 < cause.others[0].share < 0.25
    assert found(ON_GPU, both).cause == "foreign_process"
    assert named(found(ON_GPU, both | {"sm_clock_hertz": 1.41e9})) == ("slow_device", "clocks")


def test_throttling_counts_where_no_clock_is_read() -> None:
    """A throttled GPU that has the clock of its peers is not slow."""
    changes = {"gpu_throttled_ratio": 0.8}
    cause = found(ON_GPU, changes, usual={"sm_clock_hertz": None})

    assert (*named(cause), cause.figure) == ("slow_device", "clocks", "gpu_throttled_ratio")
    assert found(ON_GPU, changes).cause == "unknown"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        # A GPU that saves power lowers both clocks.
        ({"sm_clock_hertz": 1.2e9, "memory_clock_hertz": 1.593e9}, ("slow_device", "pstate")),
        # A slow port explains what is counted on it.
        (
            {"node_network_link_bytes_per_second": 12.5e9, "node_network_waiting_ratio": 0.41},
            ("network", "speed"),
        ),
    ],
)
def test_what_explains_the_other_is_told(changes: dict[str, float], cause: tuple[str, str]) -> None:
    assert named(found(ON_GPU, changes, of_node=True)) == cause


def test_network_is_why_a_thread_waits_for_a_socket() -> None:
    """Though other ranks of the node, which use none, keep up."""
    states = [("data", "socket", 0.9, "fetch (corpus.py:12)")]
    lost = {"node_tcp_retransmitted_ratio": 0.05}

    assert named(found({"data": 0.3}, lost, states=states)) == ("network", "retransmits")
    assert named(found({"data": 0.3}, {}, states=states)) == ("code", "socket")


LATE_IN_DATA = {"data": 0.35}
WAITS = at("data", pipe=0.95, running=0.05)


@pytest.mark.parametrize("state", ["sleep", "lock", "socket", "pipe", "blocked", "disk", "running"])
def test_what_workers_do_is_why_it_waits(state: str) -> None:
    """The main thread's line is only that of the loop."""
    place = "get (corpus.py:41)"
    cause = found(LATE_IN_DATA, states=WAITS, workers=at("data", place, **{state: 0.9}))

    assert named(cause) == ("input", "workers" if state == "running" else f"worker_{state}")
    assert place in cause.sentence


def test_what_workers_were_seen_to_do_is_the_better_evidence() -> None:
    """One that sleeps is not saturated; a mount says more than that it waits for a disk."""
    asleep, saturated = at("data", sleep=0.9), {"saturated_workers": 1.0}
    reads = at("data", "/data (fuse.sshfs)", disk=0.9)
    assert named(found(LATE_IN_DATA, saturated, states=WAITS, workers=asleep)) == (
        "input",
        "worker_sleep",
    )
    assert named(found(LATE_IN_DATA, states=WAITS, workers=reads)) == ("input", "mount")


def test_worker_that_waits_for_a_cpu_like_all_is_at_work() -> None:
    """As far as its peers' workers wait too."""
    workers = at("data", running=0.5, cpu_queue=0.5)
    busy = {"workers_run_queue_ratio": 0.5}
    cause = found(LATE_IN_DATA, busy, usual=dict(busy), states=WAITS, workers=workers)
    quiet = found({"data": 0.8}, {}, usual={"workers_run_queue_ratio": 0.0}, states=WAITS)

    assert named(cause) == ("input", "workers")
    assert cause.share > 0.95
    assert named(quiet) == ("input", "workers")
    asleep = at("data", cpu_queue=0.6, sleep=0.4)
    assert (
        found(LATE_IN_DATA, busy, usual=dict(busy), states=WAITS, workers=asleep).cause == "unknown"
    )


def test_workers_that_nobody_sees_are_still_waited_for() -> None:
    """It is known that it waits for them, and not for what."""
    assert named(found(LATE_IN_DATA, states=WAITS)) == ("input", "workers")
    saturated = found(LATE_IN_DATA, {"saturated_workers": 1.0}, states=WAITS)
    assert saturated.figure == "saturated_workers"


@pytest.mark.parametrize(
    ("place", "detail"),
    [
        ("/data (nfs)", "nfs"),
        ("/data (nfs4)", "nfs"),
        ("/scratch (lustre)", "lustre"),
        ("/data (fuse.sshfs)", "mount"),
        ("/mnt/a (b) (9p)", "mount"),
        ("/ (ext4)", "disk"),
        ("/ (overlay)", "disk"),
        # A line of code ends in parentheses too.
        ("read (corpus.py:88)", "storage"),
        ("", "storage"),
    ],
)
@pytest.mark.parametrize(("stage", "cause"), [("data", "input"), ("checkpoint", "storage")])
def test_wait_for_a_disk_is_named_by_its_mount(
    stage: str, cause: str, place: str, detail: str
) -> None:
    """In data it is the input that is late; its peers write checkpoints too, but faster."""
    usual = {"checkpoint_seconds": 0.02}
    said = found({stage: 0.35}, usual=usual, states=at(stage, place, disk=0.9))

    assert named(said) == (cause, detail)
    assert place in said.sentence
    assert said.figure == f"{stage}_seconds"


@pytest.mark.parametrize(
    ("detail", "figure", "fact"),
    [
        ("nfs", {"node_mount_operation_seconds": 0.031}, "/data (nfs4)"),
        ("lustre", {"node_mount_operation_seconds": 0.031}, "/scratch (lustre)"),
        ("mount", {"node_mount_operation_seconds": 0.031}, ""),
        ("disk", {"node_disk_busy_ratio": 0.96}, "nvme0n1"),
        ("disk", {"node_disk_read_seconds": 0.05}, "nvme0n1"),
        ("storage", {"node_io_waiting_ratio": 0.5}, ""),
    ],
)
@pytest.mark.parametrize(("stage", "cause"), [("data", "input"), ("eval", "storage")])
def test_storage_of_a_node_explains_a_slow_node(
    stage: str, cause: str, detail: str, figure: dict[str, float], fact: str
) -> None:
    """In the stages that use it; not one rank of many, unless its thread was seen to wait."""
    facts = dict.fromkeys(figure, fact)
    usual: dict[str, float | None] = {"eval_seconds": 0.02}

    said = found({stage: 0.25}, figure, facts=facts, usual=usual, of_node=True)
    assert named(said) == (cause, detail)
    assert fact in said.sentence
    assert found({stage: 0.25}, figure, facts=facts, usual=usual).cause == "unknown"
    assert found({"forward": 0.25}, figure, facts=facts, of_node=True).cause == "unknown"


def test_slow_disk_is_why_a_thread_waits_for_it() -> None:
    """Then it is told, with both figures, though other ranks of the node keep up."""
    changes = {"node_disk_busy_ratio": 0.96, "node_mount_operation_seconds": 0.05}
    facts = {"node_disk_busy_ratio": "nvme0n1", "node_mount_operation_seconds": "/data (nfs)"}
    waits = found(
        LATE_IN_DATA, changes, facts=facts, states=at("data", "/scratch (ext4)", disk=0.9)
    )
    asleep = found(LATE_IN_DATA, changes, facts=facts, states=at("data", sleep=0.9), of_node=True)

    assert waits.sentence.startswith("a disk of its node, nvme0n1, is busy 96 %")
    assert named(asleep) == ("code", "sleep")


Changes = Mapping[str, float | None]
QUEUE, RUNS, QUOTA = "main_run_queue_ratio", "main_running_ratio", "cpu_quota_throttled_ratio"
WORKERS_QUEUE, TOKENS = "workers_run_queue_ratio", "tokens_per_step"
MORE_WORK: Final = {TOKENS: 12_288.0, "sm_clock_hertz": 1.6e9}
ALL_WAIT: Final = {QUEUE: 0.3, RUNS: 0.3, "node_cpu_waiting_ratio": 0.95}
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
@pytest.mark.parametrize("usual", [{}, ALL_WAIT])
def test_what_its_thread_does_is_told_with_the_line(state: str, usual: dict[str, float]) -> None:
    """On a machine where all ranks wait for a CPU alike, too."""
    cause = found({"other": 0.35}, usual, usual=usual, states=at("other", LINE, **{state: 0.9}))

    assert named(cause) == ("code", state)
    assert cause.sentence.endswith(f"`{LINE}` for 180 ms a step")


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

"""The best cause wins if it accounts for half of the excess; otherwise the cause is not known."""

from typing import Final

import pytest

from exporter.causes.explain import MOST_GUESSES, explain
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import NODE, PERSISTENT
from tests.exporter.causes.planted import (
    FACTS,
    LINE,
    TOLD,
    States,
    at,
    evidence,
    figures,
    found,
    lateness,
    named,
    peers,
    why,
)

# late by what | what it has | its peers, ? for not known | its thread | its worker | the cause.
CASES: Final = """
forward=.3 | queue=.34 | | forward: running=.5 cpu_queue=.5 | | cpu run_queue

# However long its run queue is, a rank that sleeps is not short of CPU.
data=.3 | queue=.6 quota=.9 | queue=.3 | data: sleep=.95 cpu_queue=.05 | | code sleep
# Nobody knows how long its peers sleep; how long they wait for a CPU is known.
forward=.2 | queue=.13 | | forward: sleep=.5 cpu_queue=.3 | | cpu run_queue
# On a machine without a free CPU, who runs more waits more: a decoder in one rank.
data=.5 | queue=.4 runs=.5 | queue=.1 runs=.12 | data: running=.55 cpu_queue=.45 | | code running
# A moment's wait each time its peers wake is none that a thread must have that runs long.
forward=.5 | runs=.3 queue=.3 | runs=.02 queue=.015 | forward: running=.5 cpu_queue=.5 | | \
cpu run_queue
# Running may take the place of a sleep; that it has no CPU for half of it is no work.
forward=.5 | runs=.4 queue=.15 step=.75 | runs=.05 queue=0 step=.75 | \
forward: running=.6 cpu_queue=.4 | | code running
forward=.5 | runs=.4 queue=.25 step=.75 | runs=.05 queue=0 step=.75 | \
forward: running=.6 cpu_queue=.4 | | cpu run_queue

# Where the time on a CPU is not known, queues are compared. Peers of zero are peers.
forward=.3 | queue=.34 | runs=? | | | cpu run_queue
forward=.3 | queue=.34 | runs=0 | | | cpu run_queue
forward=.3 | queue=.4 clock=0 | queue=0 clock=0 tokens=0 | | | cpu run_queue
# A healthy rank uses up no quota, which needs no peers; a run queue cannot be told.
forward=.3 | quota=.9 queue=.9 | quota=? queue=? | | | cpu throttled
forward=.3 | queue=.9 | queue=? | | | unknown
# Where who waits for others sleeps, the time for which all run is known.
forward=.2 | runs=.95 step=.6 | runs=.75 step=.6 | forward: running=1 | | code running
# Two thirds of 180 ms are more than the excess of 50: it slept before it was late.
forward=.1 | | | forward: sleep=.66 running=.17 cpu_queue=.17 | | unknown
# Another thread has the interpreter's lock, and runs: that is not too little CPU.
other=.35 | runs=.3 | | other: lock=.9 running=.1 | | code lock

# It runs because the GPU, or the CPU, is slow.
forward=.3 | clock=1.41e9 | | forward: running=1 | | slow_device clocks
forward=.3 | foreign=1 | | forward: running=1 | | foreign_process
forward=.3 | quota=.9 | | forward: running=1 | | cpu throttled
forward=.3 | cpus_near_gpu_ratio=0 | | forward: running=1 | | cpu numa
# More work heats a GPU and lowers its clock, and a thread that waits for it may sleep.
forward=.1 backward=.2 | tokens=12288 clock=1.6e9 | | | | uneven_batches
forward=.1 backward=.2 | tokens=12288 clock=1.6e9 | | forward: sleep=1; backward: sleep=1 | | \
uneven_batches
# Kind of evidence decides only between causes that explain as much.
forward=.4 | tokens=13107 | | forward: sleep=.9 | | code sleep
# Samples count where tokens are not counted.
forward=.3 | samples=24 | tokens=? | | | uneven_batches
forward=.3 | samples=24 | | | | unknown

# A foreign process is told before a clock that is a little low, and not before one that is.
forward=.1 backward=.2 | clock=1.85e9 foreign=1 | | | | foreign_process
forward=.1 backward=.2 | clock=1.41e9 foreign=1 | | | | slow_device clocks
# A throttled GPU that has the clock of its peers is not slow; without a clock it counts.
forward=.1 backward=.2 | gpu_throttled_ratio=.8 | | | | unknown
forward=.1 backward=.2 | gpu_throttled_ratio=.8 | clock=? | | | slow_device clocks
# A GPU that saves power lowers both clocks. A slow port explains what is counted on it.
forward=.1 backward=.2 | clock=1.2e9 memory_clock=1.593e9 | | | | slow_device pstate
node forward=.1 backward=.2 | \
node_network_link_bytes_per_second=12.5e9 node_network_waiting_ratio=.41 | | | | network speed
# Loss is why a thread waits for a socket, though ranks of its node that use none keep up.
data=.3 | node_tcp_retransmitted_ratio=.05 | | data: socket=.9 | | network retransmits
data=.3 | | | data: socket=.9 | | code socket

# One worker that sleeps is not saturated; a mount says more than that it waits for a disk.
data=.35 | saturated_workers=1 | | data: pipe=.95 running=.05 | data: sleep=.9 | input worker_sleep
data=.35 | | | data: pipe=.95 running=.05 | data@/data (fuse.sshfs): disk=.9 | input mount
# A worker that waits for a CPU like all is at work, as far as its peers' workers wait too.
data=.35 | workers_queue=.5 | workers_queue=.5 | data: pipe=1 | data: running=.5 cpu_queue=.5 | \
input workers
data=.35 | workers_queue=.5 | workers_queue=.5 | data: pipe=1 | data: cpu_queue=.6 sleep=.4 | \
unknown
# Workers that nobody sees are still waited for.
data=.35 | | | data: pipe=.95 running=.05 | | input workers
data=.8 | | workers_queue=0 | data: pipe=.95 running=.05 | | input workers

# Storage explains a slow node in the stages that use it; not one rank of many, unless its thread
# was seen to wait.
node data=.25 | node_mount_operation_seconds=.031 | | | | input mount
node data=.25 | node_disk_busy_ratio=.96 | | | | input disk
node eval=.25 | node_disk_read_seconds=.05 | eval_seconds=.02 | | | storage disk
node eval=.25 | node_io_waiting_ratio=.5 | eval_seconds=.02 | | | storage storage
data=.25 | node_disk_busy_ratio=.96 | | | | unknown
node forward=.25 | node_disk_busy_ratio=.96 | | | | unknown

# A stage that its peers have too is not the cause, but what needs one.
checkpoint=.4 | | checkpoint_seconds=.1 | checkpoint: sleep=1 | | code sleep
checkpoint=.4 | | checkpoint_seconds=.1 | | | unknown
eval=.4 | | eval_seconds=.1 | eval: sleep=1 | | code sleep
eval=.4 | | eval_seconds=.1 | | | unknown
compute=.4 | | | | | unknown
"""


def doing(text: str) -> States:
    """Return what `STAGE[@PLACE]: STATE=SHARE ...; ...` says of a thread."""
    states: list[tuple[str, str, float, str]] = []
    for each in filter(None, text.split("; ")):
        where, _, shares = each.rpartition(": ")
        stage, _, place = where.partition("@")
        states += at(stage, place or LINE, **figures(shares))
    return states


@pytest.mark.parametrize(
    "case", [line for line in CASES.splitlines() if line and not line.startswith("#")]
)
def test_surest_cause_of_most_of_the_excess_is_told(case: str) -> None:
    """By what its thread does, by its figures, and by what its peers have of them."""
    late, has, usual, thread, worker, cause = (part.strip() for part in case.split("|"))
    said = found(
        figures(late.removeprefix("node ")),
        figures(has),
        states=doing(thread),
        workers=doing(worker),
        usual=figures(usual),
        of_node=late.startswith("node "),
    )

    assert " ".join(named(said)).strip() == cause


def test_without_any_evidence_there_is_nothing_to_say() -> None:
    """Not even that the cause is not known; nor of workers for which nobody waits."""
    late = Lateness("data", PERSISTENT, 0.2, {"data": 1.0})
    workers = [ThreadState("data", "sleep", 1.0)]

    assert explain(late, Evidence({}), peers()) is None
    assert explain(late, Evidence({"gc_ratio": float("nan")}), None) is None
    assert explain(late, Evidence({}, worker_states=workers), peers()) is None


def test_two_half_causes_are_no_cause() -> None:
    """Both are told, with their shares; where there is none at all, that."""
    extra = {"forward": 0.18, "data": 0.19}
    cause = found(extra, {"gpu_foreign_processes": 1.0}, states=at("data", sleep=0.55))

    assert (cause.cause, cause.share) == ("unknown", 0)
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
    # 5 % of the clock are no third of its time, and still a guess.
    little = found(ON_GPU, {"sm_clock_hertz": 1.85e9})
    assert [(each.cause, each.detail) for each in little.others] == [("slow_device", "clocks")]
    assert 0.1 < little.others[0].share < 0.25


def test_most_peers_may_be_late_too() -> None:
    """A third of them is not: those are held against it."""
    usual = peers()
    for name, value in (("forward_seconds", 0.33), ("main_run_queue_ratio", 0.4)):
        usual[name] = Quantiles(usual[name].lower_third, value, value)
    usual["sm_clock_hertz"] = Quantiles(1.41e9, 1.41e9, 1.95e9)

    for changes, cause in (
        ({"main_run_queue_ratio": 0.5}, ("cpu", "run_queue")),
        ({"sm_clock_hertz": 1.2e9}, ("slow_device", "clocks")),
    ):
        said = evidence({"forward": 0.4}, changes)
        assert named(why(lateness({"forward": 0.4}), said, usual)) == cause


def test_rank_alone_without_join_has_no_peers() -> None:
    """What its thread does, and what no healthy rank has, can still be told."""
    late = Lateness("data", PERSISTENT, 0.5, {"data": 1.0}, is_alone=True)
    asleep = Evidence({"gc_ratio": 0.01}, [ThreadState("data", "sleep", 0.9)])
    throttled = Evidence({"cpu_quota_throttled_ratio": 0.8, "sm_clock_hertz": 1e9})

    for said, cause in ((asleep, "code"), (throttled, "cpu")):
        assert why(late, said, None).cause == cause
        assert why(late, said, {}) == why(late, said, None)


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


@pytest.mark.parametrize("state", ["sleep", "lock", "socket", "pipe", "blocked", "running", "gpu"])
def test_what_its_thread_does_is_told_with_the_line(state: str) -> None:
    """On a machine where all ranks wait for a CPU alike, too."""
    states = at("other", LINE, **{state: 0.9})
    all_wait = figures("queue=.3 runs=.3 node_cpu_waiting_ratio=.95")
    for usual in ({}, all_wait):
        cause = found({"other": 0.35}, usual, usual=usual, states=states)
        assert named(cause) == ("code", state)
        assert cause.sentence.endswith(f"`{LINE}` for 180 ms a step")


@pytest.mark.parametrize("state", ["sleep", "lock", "socket", "pipe", "blocked", "disk", "running"])
def test_what_workers_do_is_why_it_waits(state: str) -> None:
    """The main thread's line is only that of the loop."""
    place = "get (corpus.py:41)"
    waits = at("data", pipe=0.95, running=0.05)
    cause = found({"data": 0.35}, states=waits, workers=at("data", place, **{state: 0.9}))

    assert named(cause) == ("input", "workers" if state == "running" else f"worker_{state}")
    assert place in cause.sentence


@pytest.mark.parametrize(
    ("place", "detail"),
    [
        ("/data (nfs)", "nfs"),
        ("/data (nfs4)", "nfs"),
        ("/scratch (lustre)", "lustre"),
        ("/mnt/a (b) (9p)", "mount"),
        ("/ (ext4)", "disk"),
        ("/ (overlay)", "disk"),
        ("read (corpus.py:88)", "storage"),  # A line of code ends in parentheses too.
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


def test_slow_disk_is_why_a_thread_waits_for_it() -> None:
    """Then it is told, with both figures, though other ranks of the node keep up."""
    has = figures("node_disk_busy_ratio=.96 node_mount_operation_seconds=.05")
    facts = {"node_disk_busy_ratio": "nvme0n1", "node_mount_operation_seconds": "/data (nfs)"}
    waits = at("data", "/scratch (ext4)", disk=0.9)
    cause = found({"data": 0.35}, has, facts=facts, states=waits)

    assert cause.sentence.startswith("a disk of its node, nvme0n1, is busy 96 %")
    asleep = found({"data": 0.35}, has, facts=facts, states=at("data", sleep=0.9), of_node=True)
    assert named(asleep) == ("code", "sleep")


@pytest.mark.parametrize(("own", "share"), [(0.4, 0.70), (1.0, 0.995), (7.0, 0.995)])
def test_workers_without_cpus_take_as_much_longer(own: float, share: float) -> None:
    """A third of the time that its peers have a CPU is missing; more than all cannot be."""
    queue = "workers_run_queue_ratio"
    cause = found({"data": 0.9}, {queue: own}, usual={queue: 0.1})

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


@pytest.mark.parametrize(("queued", "share"), [(0.0, 0.4), (0.5, 0.6), (9.0, 1.0)])
def test_waiting_for_a_cpu_is_work_as_far_as_all_wait(queued: float, share: float) -> None:
    """A thread that waits longer than its peers, each time it runs, is short of CPUs."""
    usual = figures(f"runs=.1 queue={0.1 * queued} eval_seconds=.001")
    states = at("eval", running=0.4, cpu_queue=0.6)
    cause = found({"eval": 0.9}, figures("runs=0 queue=0"), usual=usual, states=states)
    told = {(each.cause, each.detail): each.share for each in cause.others}
    told[named(cause)] = cause.share

    assert told["code", "running"] == pytest.approx(share, abs=0.02)

"""The best cause wins if it accounts for half of the excess; otherwise the cause is not known.

Of made-up late ranks, of real ones that were recorded once, and of any figures at all.
"""

import json
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from benchmarks.causes.score import RIGHT, RIGHT_WHEN_BUSY, UNKNOWN
from exporter.causes.explain import MOST_GUESSES, explain
from exporter.causes.model import Cause, Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import LATE_KINDS, PERSISTENT
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import THREAD_STATES
from rank_probe.wire.stages import STAGES
from tests.exporter.planted_causes import (
    LINE,
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

# late by what | what it has | its peers, ? for not known | its thread | its worker | the cause, and
# how much of the excess it accounts for.
CASES: Final = """
forward=.3 | queue=.34 | | forward: running=.5 cpu_queue=.5 | | cpu run_queue 93%

# However long its run queue is, a rank that sleeps is not short of CPU.
data=.3 | queue=.6 quota=.9 | queue=.3 | data: sleep=.95 cpu_queue=.05 | | code sleep 92%
# Nobody knows how long its peers sleep; how long they wait for a CPU is known.
forward=.2 | queue=.13 | | forward: sleep=.5 cpu_queue=.3 | | cpu run_queue 73%
# On a machine without a free CPU, who runs more waits more: a decoder in one rank.
data=.5 | queue=.4 runs=.5 | queue=.1 runs=.12 | data: running=.55 cpu_queue=.45 | | \
code running 86%
# A moment's wait each time its peers wake is none that a thread must have that runs long.
forward=.5 | runs=.3 queue=.3 | runs=.02 queue=.015 | forward: running=.5 cpu_queue=.5 | | \
cpu run_queue 76%
# Running may take the place of a sleep; that it has no CPU for half of it is no work.
forward=.5 | runs=.4 queue=.15 step=.75 | runs=.05 queue=0 step=.75 | \
forward: running=.6 cpu_queue=.4 | | code running 60%
forward=.5 | runs=.4 queue=.25 step=.75 | runs=.05 queue=0 step=.75 | \
forward: running=.6 cpu_queue=.4 | | cpu run_queue 61%

# Where the time on a CPU is not known, queues are compared. Peers of zero are peers.
forward=.3 | queue=.34 | runs=? | | | cpu run_queue
forward=.3 | queue=.34 | runs=0 | | | cpu run_queue
forward=.3 | queue=.4 clock=0 | queue=0 clock=0 tokens=0 | | | cpu run_queue
# A healthy rank uses up no quota, which needs no peers; a run queue cannot be told.
forward=.3 | quota=.9 queue=.9 | quota=? queue=? | | | cpu throttled
forward=.3 | queue=.9 | queue=? | | | unknown
# A fifth of the time is as much of the excess as of a step.
forward=.3 | quota=.2 | | | | cpu throttled 84%
forward=.3 | quota=.2 | quota=? | | | cpu throttled 85%
# Where who waits for others sleeps, the time for which all run is known.
forward=.2 | runs=.95 step=.6 | runs=.75 step=.6 | forward: running=1 | | code running
# Two thirds of 180 ms are more than the excess of 50: it slept before it was late.
forward=.1 | | | forward: sleep=.66 running=.17 cpu_queue=.17 | | unknown
# Rounded shares, or those of two moments, cannot explain more than there is.
data=.2 | | | data: sleep=1 running=1 | | unknown
# Another thread has the interpreter's lock, and runs: that is not too little CPU.
other=.35 | runs=.3 | | other: lock=.9 running=.1 | | code lock 87%

# It runs because the GPU, or the CPU, is slow.
forward=.3 | clock=1.41e9 | | forward: running=1 | | slow_device clocks 53%
forward=.3 | foreign=1 | | forward: running=1 | | foreign_process
forward=.3 | quota=.9 | | forward: running=1 | | cpu throttled
forward=.3 | cpus_near_gpu_ratio=0 | | forward: running=1 | | cpu numa
# More work heats a GPU and lowers its clock, and a thread that waits for it may sleep.
forward=.1 backward=.2 | tokens=12288 clock=1.6e9 | | | | uneven_batches
forward=.1 backward=.2 | tokens=12288 clock=1.6e9 | | forward: sleep=1; backward: sleep=1 | | \
uneven_batches
# Kind of evidence decides only between causes that explain as much.
forward=.4 | tokens=13107 | | forward: sleep=.9 | | code sleep 83%
# Samples count where tokens are not counted.
forward=.3 | samples=24 | tokens=? | | | uneven_batches 63%
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
data=.3 | | | data: socket=.9 | | code socket 86%

# One worker that sleeps is not saturated; a mount says more than that it waits for a disk.
data=.35 | saturated_workers=1 | | data: pipe=.95 running=.05 | data: sleep=.9 | input worker_sleep
data=.35 | | | data: pipe=.95 running=.05 | data@/data (fuse.sshfs): disk=.9 | input mount
# A worker that waits for a CPU like all is at work, as far as its peers' workers wait too.
data=.35 | workers_queue=.5 | workers_queue=.5 | data: pipe=1 | data: running=.5 cpu_queue=.5 | \
input workers
data=.35 | workers_queue=.5 | workers_queue=.5 | data: pipe=1 | data: cpu_queue=.6 sleep=.4 | \
unknown
# Workers without CPUs take as much longer: a third of the time that their peers have one.
data=.9 | workers_queue=.4 | workers_queue=.1 | | | cpu workers_run_queue 70%
data=.9 | workers_queue=7 | workers_queue=.1 | | | cpu workers_run_queue 99%
# Waiting for a CPU is work as far as all wait, each time that they run.
eval=.9 | runs=0 queue=0 | runs=.1 queue=.05 eval_seconds=.001 | eval: running=.4 cpu_queue=.6 | | \
code running 60%
eval=.9 | runs=0 queue=0 | runs=.1 queue=.9 eval_seconds=.001 | eval: running=.4 cpu_queue=.6 | | \
code running 100%
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

# A wait for a disk is named by its mount; a line of code, which ends in parentheses too, is none.
data=.35 | | | data@/data (nfs): disk=.9 | | input nfs
data=.35 | | | data@/data (nfs4): disk=.9 | | input nfs
data=.35 | | | data@/scratch (lustre): disk=.9 | | input lustre
data=.35 | | | data@/mnt/a (b) (9p): disk=.9 | | input mount
data=.35 | | | data@/ (overlay): disk=.9 | | input disk
data=.35 | | | data: disk=.9 | | input storage
checkpoint=.35 | | checkpoint_seconds=.02 | checkpoint@/ (ext4): disk=.9 | | storage disk
checkpoint=.35 | | checkpoint_seconds=.02 | checkpoint: disk=.9 | | storage storage

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
    late, has, usual, thread, worker, told = (part.strip() for part in case.split("|"))
    *cause, percent = told.split() if told.endswith("%") else (*told.split(), None)
    said = found(
        figures(late.removeprefix("node ")),
        figures(has),
        states=doing(thread),
        workers=doing(worker),
        usual=figures(usual),
        of_node=late.startswith("node "),
    )

    assert " ".join(named(said)).split() == cause
    assert percent is None or said.share == pytest.approx(float(percent[:-1]) / 100, abs=0.01)


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
    little = found({"forward": 0.1, "backward": 0.2}, {"sm_clock_hertz": 1.85e9})
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
    throttled = Evidence({"cpu_quota_throttled_ratio": 0.2, "sm_clock_hertz": 1e9})

    for said, cause in ((asleep, "code"), (throttled, "cpu")):
        assert why(late, said, None).cause == cause
        assert why(late, said, {}) == why(late, said, None)
    # A fifth of its time; half as much again is a third of it.
    assert why(late, throttled, None).share == pytest.approx(0.6)


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


def test_slow_disk_is_why_a_thread_waits_for_it() -> None:
    """Then it is told, with both figures, though other ranks of the node keep up."""
    has = figures("node_disk_busy_ratio=.96 node_mount_operation_seconds=.05")
    facts = {"node_disk_busy_ratio": "nvme0n1", "node_mount_operation_seconds": "/data (nfs)"}
    waits = at("data", "/scratch (ext4)", disk=0.9)
    cause = found({"data": 0.35}, has, facts=facts, states=waits)

    assert cause.sentence.startswith("a disk of its node, nvme0n1, is busy 96 %")
    assert "`/scratch (ext4)`" in found({"data": 0.35}, states=waits).sentence
    asleep = found({"data": 0.35}, has, facts=facts, states=at("data", sleep=0.9), of_node=True)
    assert named(asleep) == ("code", "sleep")


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


PLANTED: Final = Path(__file__).parents[1] / "fixtures" / "causes" / "planted.jsonl"
RECORDED: Final = [json.loads(line) for line in PLANTED.read_text().splitlines()]
# All four ranks wait for a CPU for a third of the time; the worker has no peer to compare with.
CANNOT_BE_TOLD: Final = [("hog", True), ("workers", True)]


def explained(case: dict[str, Any]) -> Cause:
    """Return why the rank of a recorded *case* was late."""
    found = explain(
        Lateness(**case["late"]),
        Evidence(
            case["figures"],
            [ThreadState(*each) for each in case["states"]],
            [ThreadState(*each) for each in case["workers"]],
            case["facts"],
        ),
        {name: Quantiles(*each) for name, each in case["peers"].items()},
    )
    assert found is not None
    return found


@pytest.mark.parametrize("case", RECORDED, ids=lambda each: f"{each['planted']}-{each['busy']}")
def test_what_was_planted_is_told(case: dict[str, Any]) -> None:
    """Also with all CPUs busy, except where nothing that was measured tells it: then unknown."""
    planted, busy = case["planted"], case["busy"]
    found = explained(case)
    right = [*RIGHT[planted], *(RIGHT_WHEN_BUSY.get(planted, ()) if busy else ())]

    if (planted, busy) in CANNOT_BE_TOLD:
        right = [UNKNOWN]
    assert {found.cause, f"{found.cause}/{found.detail}"} & set(right), found


STAGE = st.sampled_from([stage for stage in STAGES if stage != "sync"])
NUMBER = st.one_of(
    st.floats(0, 1), st.floats(0, 1e10), st.floats(), st.sampled_from([0.0, 1.0, float("nan")])
)
STATE = st.builds(
    ThreadState,
    STAGE,
    st.sampled_from(THREAD_STATES),
    st.floats(0, 1) | st.floats(),
    st.sampled_from(["", "f (a.py:1)", "/data (nfs)", "{own} [x]"]),
)
EVIDENCE = st.builds(
    Evidence,
    st.dictionaries(st.sampled_from(FIGURES), NUMBER),
    st.lists(STATE, max_size=6),
    st.lists(STATE, max_size=3),
    st.dictionaries(st.sampled_from(FIGURES), st.sampled_from(["", "too hot", "/data (nfs)"])),
)
QUANTILES = st.lists(NUMBER, min_size=3, max_size=3).map(lambda each: Quantiles(*each))
PEERS = st.dictionaries(st.sampled_from(FIGURES), QUANTILES)
LATE = st.builds(
    Lateness,
    STAGE,
    st.sampled_from(LATE_KINDS),
    NUMBER,
    st.dictionaries(STAGE, NUMBER),
    st.booleans(),
)


@settings(deadline=None)
@given(LATE, EVIDENCE, PEERS)
def test_explanation_makes_sense(
    late: Lateness, evidence: Evidence, peers: dict[str, Quantiles]
) -> None:
    """Shares are shares, every word is filled in, and a cause accounts for half."""
    cause = explain(late, evidence, peers)
    if cause is None:
        return

    assert 0 <= cause.share <= 1
    assert (cause.share >= 0.5) == (cause.cause != "unknown")
    assert len(cause.others) <= 2
    names = [(each.cause, each.detail) for each in cause.others]
    assert len({*names, (cause.cause, cause.detail)}) == 1 + len(names)
    for each in cause.others:
        assert 0.1 <= each.share <= 1
        assert cause.cause != "unknown" or each.share < 0.5
    assert cause.figure in ("", *FIGURES)
    assert cause.value is None or cause.figure
    assert "{" not in cause.sentence.replace("{own} [x]", "")


@settings(deadline=None)
@given(LATE, st.dictionaries(st.sampled_from(FIGURES), NUMBER))
def test_figures_of_its_peers_never_win(late: Lateness, figures: dict[str, float]) -> None:
    """Whatever they are: what all share explains no excess."""
    peers = {name: Quantiles(value, value, value) for name, value in figures.items()}
    cause = explain(late, Evidence(figures), peers)

    assert cause is None or (cause.cause, cause.others) == ("unknown", ())

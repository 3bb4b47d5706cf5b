"""The best cause is reported if it accounts for half of the excess; otherwise it is unknown.

The late ranks are invented cases and recordings of real ones.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.causes.score import RIGHT, RIGHT_WHEN_BUSY, UNKNOWN
from exporter.causes.explain import explain, explain_change
from exporter.causes.model import Cause, Evidence, Lateness, Quantiles, ThreadState
from exporter.causes.units import pair, text
from rank_probe.judge.verdict import NODE, PERSISTENT
from tests.exporter.live_node import rows

# Relative distance of the peers' 1/3 and 2/3 quantiles from their median.
SPREAD: Final = 0.005
SHORT: Final = {
    "clock": "sm_clock_hertz",
    "memory_clock": "memory_clock_hertz",
    "queue": "main_run_queue_ratio",
    "runs": "main_running_ratio",
    "quota": "cpu_quota_throttled_ratio",
    "workers_queue": "workers_run_queue_ratio",
    "foreign": "gpu_foreign_processes",
    "step": "step_seconds",
    "tokens": "tokens_per_step",
    "samples": "samples_per_step",
}
# Seconds per step of a healthy rank; half a second in total, as in the simulation.
USUAL: Final = {
    "optimizer": 0.04,
    "other": 0.025,
    "data": 0.04,
    "h2d": 0.01,
    "forward": 0.13,
    "backward": 0.255,
}
BUSY: Final = sum(USUAL.values())
FACTS: Final = {"node_mount_operation_seconds": "/data (nfs4)", "node_disk_busy_ratio": "nvme0n1"}


def figures(text: str) -> dict[str, Any]:
    """Parse `NAME=NUMBER ...` into numbers by the figure's full name; `?` stands for None."""
    pairs = (each.split("=") for each in text.split())
    return {SHORT.get(name, name): None if value == "?" else float(value) for name, value in pairs}


# The figures of a healthy rank in a busy job.
HEALTHY: Final = {
    **{f"{stage}_seconds": seconds for stage, seconds in USUAL.items()},
    **figures("""
        clock=1.95e9 memory_clock=2.619e9 gpu_throttled_ratio=.005 gpu_power_watts=640
        gpu_temperature_celsius=60 gpu_decoder_ratio=0 foreign=0 gpu_memory_faults=0
        pcie_link_bytes_per_second=63e9 pcie_errors_per_second=0
        nvlink_links_up=18 nvlink_errors_per_second=0
        runs=.9 queue=.005 workers_queue=.01 saturated_workers=0 quota=.002 cpus_near_gpu_ratio=1
        read_bytes_per_second=1e6 major_faults_per_second=.1 io_waiting_ratio=.01 gc_ratio=.002
        tokens=8192 samples=16
        node_cpu_waiting_ratio=.01 node_steal_cpus=0 node_numa_misses_per_second=0
        node_cpu_clock_hertz=3.1e9 node_cpu_throttled_ratio=0
        node_io_waiting_ratio=.01 node_disk_busy_ratio=.11 node_disk_read_seconds=.0004
        node_mount_operation_seconds=.0008
        node_network_errors_per_second=0 node_network_waiting_ratio=.01
        node_network_link_bytes_per_second=50e9 node_tcp_retransmitted_ratio=.0001
    """),
}


def doing(text: str) -> list[ThreadState]:
    """Parse `STAGE[@PLACE]: STATE=SHARE ...; ...` into the states of a thread."""
    states: list[ThreadState] = []
    for each in filter(None, text.split("; ")):
        where, _, shares = each.rpartition(": ")
        stage, _, place = where.partition("@")
        states += [ThreadState(stage, *pair, place) for pair in figures(shares).items()]
    return states


def peers_of(changes: str = "") -> dict[str, Quantiles]:
    """Return the quantiles of healthy peers, all close to the median, with *changes*."""
    return {
        name: Quantiles(value * (1 - SPREAD), value, value * (1 + SPREAD))
        for name, value in {**HEALTHY, **figures(changes)}.items()
        if value is not None
    }


def found(
    late: str,
    has: str = "",
    usual: str = "",
    thread: str = "",
    worker: str = "",
    *,
    facts: Mapping[str, str] = FACTS,
) -> Cause:
    """Return why a rank is *late*: the excess by stage, as shares of a healthy rank's busy time.

    *has* overrides the figures of the late rank, *usual* those of its peers. If *late* starts with
    `node`, all ranks of the node are late.
    """
    extra = figures(late.removeprefix("node "))
    longer = {f"{s}_seconds": USUAL.get(s, 0.0) + share * BUSY for s, share in extra.items()}
    most = max(extra, key=lambda stage: extra[stage])
    kind = NODE if late.startswith("node ") else PERSISTENT
    cause = explain(
        Lateness(most, kind, sum(extra.values()), extra),
        Evidence({**HEALTHY, **longer, **figures(has)}, doing(thread), doing(worker), facts),
        peers_of(usual),
    )
    assert cause is not None
    return cause


# Excess by stage | own figures | peers' figures, ? if unknown | main thread | worker | cause, and
# the share of the excess that it accounts for.
CASES: Final = """
forward=.3 | queue=.34 | | forward: running=.5 cpu_queue=.5 | | cpu run_queue 93%

# Of each step it collects garbage for the share that it has over its peers.
other=.3 | gc_ratio=.15 | | | | gc 64%

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
# It runs for a third more, as ranks do: its wait for a CPU is no work of its own yet.
data=.5 | runs=.52 queue=.4 step=.75 | runs=.4 queue=.3 step=.75 | \
data: running=.7 cpu_queue=.3 | | unknown

# Where the time on a CPU is not known, queues are compared. Peers of zero are peers.
forward=.3 | queue=.4 clock=0 | queue=0 runs=? clock=0 tokens=0 | | | cpu run_queue
# Where all wait much, they differ by as much.
forward=.1 | queue=.29 | queue=.2 | | | unknown
# A healthy rank uses up no quota, which needs no peers; a run queue cannot be told.
forward=.3 | quota=.9 queue=.9 | quota=? queue=? | | | cpu throttled
# Where who waits for others sleeps, the time for which all run is known.
forward=.2 | runs=.95 step=.6 | runs=.75 step=.6 | forward: running=1 | | code running
# Two thirds of 180 ms are more than the excess of 50: it slept before it was late.
forward=.1 | | | forward: sleep=.66 running=.17 cpu_queue=.17 | | unknown
# Rounded shares, or those of two moments, cannot explain more than there is.
data=.2 | | | data: sleep=1 running=1 | | unknown
# Another thread has the lock, and runs: that is not too little CPU. It may be the interpreter's.
other=.35 | runs=.3 | | other: lock=.9 running=.1 | | code lock 87%
other=.35 | runs=.3 | | other@thread `saver` at f (a.py:1): lock=.9 | | code interpreter 87%

# It runs because the GPU, or the CPU, is slow.
forward=.3 | clock=1.41e9 | | forward: running=1 | | slow_device clocks 53%
# More work heats a GPU and lowers its clock, and a thread that waits for it may sleep.
forward=.1 backward=.2 | tokens=12288 clock=1.6e9 | | forward: sleep=1; backward: sleep=1 | | \
uneven_batches
# Kind of evidence decides only between causes that explain as much.
forward=.4 | tokens=13107 | | forward: sleep=.9 | | code sleep 83%
# Samples count where tokens are not counted.
forward=.3 | samples=1.5 | samples=1 tokens=? | | | uneven_batches 63%

# A foreign process is told before a clock that is a little low, and not before one that is.
forward=.1 backward=.2 | clock=1.85e9 foreign=1 | | | | foreign_process
forward=.1 backward=.2 | clock=1.41e9 foreign=1 | | | | slow_device clocks
# A throttled GPU that has the clock of its peers is not slow; without a clock it counts.
forward=.1 backward=.2 | gpu_throttled_ratio=.8 | | | | unknown
forward=.1 backward=.2 | gpu_throttled_ratio=.8 | clock=? | | | slow_device clocks
# A slow port explains what is counted on it.
node forward=.1 backward=.2 | \
node_network_link_bytes_per_second=12.5e9 node_network_waiting_ratio=.41 | | | | network speed
# Loss is why a thread waits for a socket, though ranks of its node that use none keep up.
data=.3 | node_tcp_retransmitted_ratio=.05 | | data: socket=.9 | | network retransmits

# A GPU does not delay batches, nor a loader or its storage a forward pass.
data=.3 | clock=1e9 foreign=1 tokens=12288 | | | | unknown
node forward=.3 | node_disk_busy_ratio=.96 gpu_decoder_ratio=.9 | | | | unknown
# Nor one rank of many, unless its thread was seen to wait.
data=.25 | node_disk_busy_ratio=.96 | | | | unknown
data=.25 | node_disk_busy_ratio=.96 | | data@/scratch (ext4): disk=.9 | | input disk
node eval=.25 | node_disk_read_seconds=.05 | eval_seconds=.02 | | | storage disk

# One worker that sleeps is not saturated.
data=.35 | saturated_workers=1 | | data: pipe=.95 running=.05 | data: sleep=.9 | input worker_sleep
# A worker that waits for a CPU like all is at work, as far as its peers' workers wait too.
data=.35 | workers_queue=.5 | workers_queue=.5 | data: pipe=1 | data: cpu_queue=.6 sleep=.4 | \
unknown
# Workers without CPUs take as much longer: a third of the time that their peers have one.
data=.9 | workers_queue=.4 | workers_queue=.1 | | | cpu workers_run_queue 70%
# Waiting for a CPU is work as far as all wait, each time that they run.
eval=.9 | runs=0 queue=0 | runs=.1 queue=.05 eval_seconds=.001 | eval: running=.4 cpu_queue=.6 | | \
code running 60%
# Workers that nobody sees are still waited for.
data=.8 | | workers_queue=0 | data: pipe=.95 running=.05 | | input workers

# A wait for a disk is named by its mount; a line of code, which ends in parentheses too, is none.
data=.35 | | | data@/data (nfs4): disk=.9 | | input nfs
data=.35 | | | data@/mnt/a (b) (9p): disk=.9 | | input mount
data=.35 | | | data@get (corpus.py:41): disk=.9 | | input storage
checkpoint=.35 | | checkpoint_seconds=.02 | checkpoint@/ (ext4): disk=.9 | | storage disk

# A stage that its peers have not is a duty; one that they have is not the cause, but needs one.
checkpoint=.25 | | | checkpoint: sleep=1 | | extra_duties checkpoint
eval=.4 | | eval_seconds=.1 | eval: sleep=1 | | code sleep
other=.35 | | | other: gpu=.9 | | code gpu
"""


@pytest.mark.parametrize("case", rows(CASES), ids=" | ".join)
def test_surest_cause_of_most_of_the_excess_is_told(case: list[str]) -> None:
    """The cause follows from the rank's threads, its figures and those of its peers."""
    *said, told = case
    *name, percent = told.split() if told.endswith("%") else (*told.split(), None)
    cause = found(*said)

    assert f"{cause.cause} {cause.detail}".split() == name
    assert percent is None or cause.share == pytest.approx(float(percent[:-1]) / 100, abs=0.01)
    assert "{" not in cause.sentence


# Cause, detail, late stage, a small excess, figure, and three values of the figure: just within its
# limit, just beyond it and far beyond it.
LIMITS: Final = """
slow_device clocks forward .01 clock 1.9305e9 1.911e9 9e8
slow_device pstate forward .01 memory_clock 2.5928e9 2.5666e9 1e9
slow_device memory forward .1 gpu_memory_faults .4 .6 2
slow_device pcie_link h2d .1 pcie_link_bytes_per_second 57.33e9 56.07e9 15.8e9
slow_device pcie_errors h2d .1 pcie_errors_per_second .9 1.1 30
slow_device nvlink forward .1 nvlink_links_up 17.95 17 17
slow_device nvlink_errors forward .1 nvlink_errors_per_second .9 1.1 12
foreign_process - forward .1 gpu_foreign_processes .4 .6 1
cpu run_queue forward .02 queue .024 .026 .34
cpu throttled forward .05 quota .05 .055 .9
cpu numa forward .1 cpus_near_gpu_ratio .06 .04 0
cpu thermal forward .1 node_cpu_throttled_ratio .09 .11 .6
cpu frequency forward .1 node_cpu_clock_hertz 2.232e9 2.139e9 1.24e9
cpu steal forward .1 node_steal_cpus .4 .6 4
cpu node forward .1 node_cpu_waiting_ratio .24 .27 .61
cpu numa_miss forward .1 node_numa_misses_per_second 9000 11000 50000
cpu workers_run_queue data .02 workers_queue .028 .032 .6
network speed data .1 node_network_link_bytes_per_second 45.5e9 44.5e9 12.5e9
network errors data .1 node_network_errors_per_second .9 1.1 40
network retransmits data .1 node_tcp_retransmitted_ratio .009 .011 .029
network congestion data .1 node_network_waiting_ratio .1 .12 .41
gc - other .01 gc_ratio .011 .013 .3
uneven_batches - forward .002 tokens 8306 8323 12288
input reads data .1 read_bytes_per_second 20e6 22e6 241e6
input reads data .1 major_faults_per_second 99 101 140
input reads data .1 io_waiting_ratio .24 .27 .41
input decoder data .1 gpu_decoder_ratio .89 .91 .98
input workers data .1 saturated_workers .4 .6 2
input disk data .1 node_disk_busy_ratio .89 .91 .96
input disk data .1 node_disk_read_seconds .02 .021 .05
input nfs data .1 node_mount_operation_seconds .02 .021 .031
input storage data .1 node_io_waiting_ratio .24 .27 .5
"""


@pytest.mark.parametrize("limit", LIMITS.strip().splitlines())
def test_figure_tells_the_cause_from_its_limit_on(limit: str) -> None:
    """A figure indicates its cause only beyond its limit, and only if the peers differ.

    A node's figure counts only if all ranks of the node are late.
    """
    cause, detail, stage, little, figure, below, over, much = limit.split()
    (name,) = figures(f"{figure}=0")
    late, much = f"{stage}=.3", f"{figure}={much}"
    assert found(f"node {stage}={little}", f"{figure}={below}").figure != name
    assert found(f"node {stage}={little}", f"{figure}={over}").figure == name

    said = found(f"node {late}", much)
    assert (said.cause, said.detail, said.figure) == (cause, detail.strip("-"), name)
    assert {said.figure: said.value} == figures(much)
    assert "{" not in said.sentence
    assert found(f"node {late}", much, usual=much).cause == UNKNOWN
    assert (found(late, much, facts={}).cause == UNKNOWN) is name.startswith("node_")


# Stage, figure, its value before and now | cause and detail | sentence.
CHANGES: Final = """
data node_mount_operation_seconds 0.001 0.04 | input nfs | \
an operation on a file system, `/data (nfs4)`, takes 40 ms, before 1
sync node_tcp_retransmitted_ratio 0.0001 0.03 | network retransmits | \
the node retransmits 3 % of its TCP segments, before 0.01 %
backward node_cpu_clock_hertz 3.1e9 1.2e9 | cpu frequency | \
busy CPUs run at 1.20 GHz, before at 3.10
"""


@pytest.mark.parametrize(("what", "cause", "sentence"), rows(CHANGES))
def test_cause_of_a_change_and_its_sentence(what: str, cause: str, sentence: str) -> None:
    """The sentence gives the figure now and before, and where it was measured if known."""
    stage, figure, before, now = what.split()
    said = explain_change(stage, 1.5, {figure: float(now)}, {figure: float(before)}, FACTS)

    assert said is not None
    assert (f"{said.cause} {said.detail}", said.sentence) == (cause, sentence)
    assert said.first_action == ""


def test_without_any_evidence_there_is_nothing_to_say() -> None:
    """No evidence gives no answer, not even `unknown`; a worker's state alone is no evidence."""
    late = Lateness("data", PERSISTENT, 0.2, {"data": 1.0})
    workers = [ThreadState("data", "sleep", 1.0)]

    assert explain(late, Evidence({}), peers_of()) is None
    assert explain(late, Evidence({"gc_ratio": float("nan")}), None) is None
    assert explain(late, Evidence({}, worker_states=workers), peers_of()) is None


def test_two_half_causes_are_no_cause() -> None:
    """An unknown cause comes with the best guesses and their shares, if there are any."""
    cause = found("forward=.18 data=.19", "foreign=1", thread="data: sleep=.55")

    assert (cause.cause, cause.share) == (UNKNOWN, 0)
    assert [each.cause for each in cause.others] == ["foreign_process", "code"]
    assert [each.share for each in cause.others] == pytest.approx([0.48, 0.20], abs=0.02)
    assert cause.sentence.startswith("no measured cause accounts for half of the delay: it shares")
    assert " % of it)" in cause.sentence
    nothing = found("forward=.3")
    assert nothing.sentence == "no measured cause accounts for half of the delay"
    assert (nothing.others, nothing.figure, nothing.value) == ((), "", None)


def test_next_best_guesses_are_told_with_a_cause() -> None:
    """A cause comes with at most two other guesses, each distinct and worth at least a tenth."""
    much = "foreign=1 pcie_errors_per_second=5 nvlink_errors_per_second=5 "
    much += "read_bytes_per_second=300e6 major_faults_per_second=500"
    for late, has, told, others in (
        ("forward=.3 data=.02", much, "foreign_process", ["pcie_errors", "nvlink_errors"]),
        ("forward=.3 data=.02", "foreign=1 saturated_workers=2", "foreign_process", []),
        ("forward=.2 data=.4", much, "input", ["", "pcie_errors"]),
        # A clock that is 5 % low does not explain 30 % more time, but it is still a guess.
        ("forward=.1 backward=.2", "clock=1.85e9", UNKNOWN, ["clocks"]),
    ):
        cause = found(late, has)
        assert (cause.cause, [each.detail for each in cause.others]) == (told, others)


def test_most_peers_may_be_late_too() -> None:
    """A rank is compared with the healthy third of its peers, even if the others are late too."""
    late = Lateness("forward", PERSISTENT, 0.4, {"forward": 1.0})
    usual = peers_of() | {
        "main_run_queue_ratio": Quantiles(0.005, 0.4, 0.4),
        "sm_clock_hertz": Quantiles(1.41e9, 1.41e9, 1.95e9),
    }
    for has, told in (("queue=.5", "run_queue"), ("clock=1.2e9", "clocks")):
        cause = explain(late, Evidence({**HEALTHY, **figures(has)}), usual)
        assert cause is not None
        assert cause.detail == told


def test_rank_alone_without_join_has_no_peers() -> None:
    """Without peers, thread states and figures that no healthy rank has still explain a rank.

    Stage times need not be measured: the judge reports in which stage the rank is late.
    """
    late = Lateness("data", PERSISTENT, 0.5, {"data": 2.0}, is_alone=True)
    asleep = [ThreadState("data", "sleep", 0.9)]
    for said, told in (
        (Evidence({}, asleep), "it sleeps for 90 % of its time"),
        (Evidence({"gc_ratio": 0.4}), "it spends 40 % of the time collecting garbage"),
    ):
        cause = explain(late, said, None)
        assert cause is not None
        assert told in cause.sentence
        assert explain(late, said, {}) == cause
    # An excess of one half is 1/3 of its time; throttling for 1/5 of its time is 0.6 of that.
    throttled = explain(late, Evidence({"cpu_quota_throttled_ratio": 0.2}), None)
    assert throttled is not None
    assert throttled.share == pytest.approx(0.6)


def test_sentence_has_both_figures_and_leaves_out_what_is_not_known() -> None:
    """Both figures share a scale, and braces in a place name are not formatted again."""
    for place, where in (("", ""), ("@f[{own}] (a.py:1)", " in `f[{own}] (a.py:1)`")):
        cause = found("data=.35", thread=f"data{place}: sleep=1")
        assert cause.sentence == f"it sleeps{where} for 215 ms a step"
        assert cause.figure == "data_seconds"
        assert cause.value == pytest.approx(0.215)
        assert cause.peers_value == pytest.approx(0.04 * 0.995)
    assert found("eval=.25", thread="eval: sleep=1").sentence == (
        "it spends 125 ms a step evaluating, its peers none"
    )
    assert found("data=.35", thread="data@thread `saver` at f (a.py:1): lock=1").sentence == (
        "another thread of its process holds the GIL for 215 ms a step: "
        "thread `saver` at f (a.py:1)"
    )
    for number, end in (1, ""), (2, "es"):
        said = found("forward=.3", f"foreign={number}").sentence
        assert said == f"it shares its GPU with {number} foreign process{end}, its peers with 0"
    # The driver's reason for a low clock may be filed under the throttling figure.
    capped = {"gpu_throttled_ratio": "power cap"}
    assert found("forward=.3", "clock=1e9", facts=capped).sentence == (
        "its SM clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C"
    )


@pytest.mark.parametrize(
    ("figure", "own", "peers", "written"),
    [
        ("main_run_queue_ratio", 0.344, 0.0214, ("34 %", "2.1 %")),
        ("read_bytes_per_second", 2.4e9, 3e6, ("2.4 GB/s", "0.003")),
        ("read_bytes_per_second", 2.4e9, 5e4, ("2.4 GB/s", "0")),
        ("read_bytes_per_second", 240e6, None, ("240 MB/s", "")),
        ("major_faults_per_second", 1234.0, None, ("1,234 a second", "")),
        ("node_disk_read_seconds", 0.0004, None, ("400 µs", "")),
        ("nvlink_links_up", 9.0, None, ("9", "")),
    ],
)
def test_figure_is_written_in_its_unit(
    figure: str, own: float, peers: float | None, written: tuple[str, str]
) -> None:
    """A figure has a readable unit; its peers' value has the same scale and repeats only `%`."""
    assert text(figure, own) == written[0]
    assert peers is None or pair(figure, own, peers) == written


PLANTED: Final = Path(__file__).parents[1] / "fixtures" / "causes" / "planted.jsonl"
RECORDED: Final = [json.loads(line) for line in PLANTED.read_text().splitlines()]
# All four ranks wait for a CPU for a third of the time; the worker has no peer to compare with.
CANNOT_BE_TOLD: Final = [("hog", True), ("workers", True)]


@pytest.mark.parametrize("case", RECORDED, ids=lambda each: f"{each['planted']}-{each['busy']}")
def test_what_was_planted_is_told(case: dict[str, Any]) -> None:
    """Each planted fault is named, on busy CPUs too; where no figure shows it, it is unknown."""
    planted, busy = case["planted"], case["busy"]
    cause = explain(
        Lateness(**case["late"]),
        Evidence(
            case["figures"],
            [ThreadState(*each) for each in case["states"]],
            [ThreadState(*each) for each in case["workers"]],
            case["facts"],
        ),
        {name: Quantiles(*each) for name, each in case["peers"].items()},
    )
    right = [*RIGHT[planted], *(RIGHT_WHEN_BUSY.get(planted, ()) if busy else ())]

    if (planted, busy) in CANNOT_BE_TOLD:
        right = [UNKNOWN]
    assert cause is not None
    assert {cause.cause, f"{cause.cause}/{cause.detail}"} & set(right), cause

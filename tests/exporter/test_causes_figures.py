"""From what difference on a figure tells a cause, in which stages, and what is said of it."""

from typing import Final, NamedTuple

import pytest

from exporter.causes.explain import explain_change
from exporter.causes.model import Evidence, Lateness, ThreadState
from exporter.causes.units import pair, text
from rank_probe.judge.verdict import NODE, PERSISTENT
from tests.exporter.planted_causes import (
    at,
    evidence,
    figures,
    found,
    lateness,
    named,
    peers,
    why,
)


class Told(NamedTuple):
    """A figure that tells a cause: *below* its limit it is nothing, *over* it a little *late*."""

    cause: tuple[str, str]
    late: dict[str, float]
    figure: str
    below: float
    over: float
    much: dict[str, float]


# A cause, the stage that is late by how little, the figure just below its limit, just over it, and
# much of it, with what comes with it.
LIMITS: Final = """
slow_device clocks forward .01 clock 1.9305e9 1.911e9 9e8 gpu_temperature_celsius=87
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
cpu thermal forward .1 node_cpu_throttled_ratio .09 .11 .6 node_cpu_clock_hertz=1.8e9
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
FACTS: Final = {"node_mount_operation_seconds": "/data (nfs4)", "node_disk_busy_ratio": "nvme0n1"}


def _told(line: str) -> Told:
    cause, detail, stage, little, figure, below, over, much, *more = line.split()
    (name,) = figures(f"{figure}=0")
    return Told(
        (cause, detail.strip("-")),
        {stage: float(little)},
        name,
        float(below),
        float(over),
        figures(" ".join((f"{name}={much}", *more))),
    )


TOLD: Final = [_told(line) for line in LIMITS.strip().splitlines()]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.figure)
def test_figure_tells_the_cause_from_its_limit_on(told: Told) -> None:
    """Little of it is nothing, which a healthy rank may have; nor is what its peers have too.

    A node's counts only if all its ranks are late, or it has one. Nobody needs to have measured the
    stages: the judge says in which of them it is late.
    """
    assert found(told.late, {told.figure: told.below}, of_node=True).figure != told.figure
    assert found(told.late, {told.figure: told.over}, of_node=True).figure == told.figure

    extra, of_node = dict.fromkeys(told.late, 0.3), told.figure.startswith("node_")
    said = found(extra, told.much, facts=FACTS, of_node=of_node)
    assert named(said) == told.cause
    assert said.value == told.much[said.figure]
    assert found(extra, told.much, usual=dict(told.much), of_node=of_node).cause == "unknown"
    known = evidence(extra, told.much, facts=FACTS)
    bare = {name: known.figures[name] for name in known.figures if "_seconds" not in name}
    unmeasured = Evidence({**bare, **told.much}, facts=FACTS)
    assert named(why(lateness(extra, NODE), unmeasured, peers())) == told.cause
    if of_node:
        assert found(extra, told.much, facts=FACTS).cause == "unknown"
        assert named(why(lateness(extra, is_alone=True), known, peers())) == told.cause


@pytest.mark.parametrize(
    ("figure", "usual", "own", "stage"),
    [
        ("main_run_queue_ratio", 0.2, 0.29, "forward"),
        ("workers_run_queue_ratio", 0.2, 0.29, "data"),
        ("gpu_decoder_ratio", 0.85, 0.94, "data"),
        ("node_disk_busy_ratio", 0.75, 0.99, "data"),
    ],
)
def test_hardly_more_than_peers_have_is_nothing(
    figure: str, usual: float, own: float, stage: str
) -> None:
    """Where all have much of it, they differ by as much."""
    for peers_have, is_told in ((usual, False), (usual / 2, True)):
        others = {figure: peers_have, "main_running_ratio": 0.9}
        said = found({stage: 0.1}, {figure: own}, usual=others, of_node=True)
        assert (said.figure == figure) is is_told


@pytest.mark.parametrize(
    ("causes", "stages"),
    [
        ("slow_device foreign_process numa", "data other eval"),
        ("reads disk nfs storage", "forward backward optimizer"),
        ("decoder workers workers_run_queue", "forward other"),
        ("uneven_batches", "data optimizer other"),
    ],
)
def test_figure_explains_no_stage_that_it_cannot_delay(causes: str, stages: str) -> None:
    """A GPU does not delay batches, a loader no backward pass."""
    those = [each for each in TOLD if set(each.cause) & set(causes.split())]
    for told in those:
        for stage in stages.split():
            much = {told.figure: told.much[told.figure]}
            said = found({stage: 0.5}, much, usual={"eval_seconds": 0.1}, of_node=True)
            assert said.figure != told.figure, stage


# The stage, the figure before and now, the cause, its detail and the sentence that says it.
CHANGES: Final = """
data node_mount_operation_seconds 0.001 0.04 input nfs \
an operation on a file system, `/data (nfs4)`, takes 40 ms, before 1
data node_disk_busy_ratio 0.3 0.98 input disk \
a disk, nvme0n1, is busy 98 % of the time, before 30 %
checkpoint node_io_waiting_ratio 0.1 0.5 storage storage \
tasks on the node wait for storage 50 % of the time, before 10 %
sync node_tcp_retransmitted_ratio 0.0001 0.03 network retransmits \
the node retransmits 3 % of its TCP segments, before 0.01 %
backward node_cpu_clock_hertz 3.1e9 1.2e9 cpu frequency \
busy CPUs run at 1.20 GHz, before at 3.10
forward memory_clock_hertz 2.6e9 1.6e9 slow_device pstate \
the GPUs' memory clock is 1.60 GHz, before 2.60
"""


@pytest.mark.parametrize("change", CHANGES.strip().splitlines())
def test_cause_of_a_change_and_its_sentence(change: str) -> None:
    """Both figures, of now and before, and what they are of."""
    stage, figure, before, now, cause, detail, sentence = change.split(" ", 6)
    said = explain_change(stage, 1.5, {figure: float(now)}, {figure: float(before)}, FACTS)

    assert said is not None
    assert (said.cause, said.detail, said.sentence) == (cause, detail, sentence)
    assert said.first_action == ""


@pytest.mark.parametrize(
    ("stage", "figure", "before", "now"),
    [
        ("data", "node_io_waiting_ratio", None, 0.9),  # There is no past.
        ("data", "node_io_waiting_ratio", 0.9, 0.9),
        ("sync", "node_cpu_waiting_ratio", 0.1, 0.9),  # A wait for others is no work.
        ("data", "sm_clock_hertz", 2e9, 1e9),  # That is not on the GPU.
        ("forward", "sm_clock_hertz", 2e9, 1.8e9),  # A third of it.
    ],
)
def test_what_does_not_account_for_half_is_not_told(
    stage: str, figure: str, before: float | None, now: float
) -> None:
    past = {} if before is None else {figure: before}

    assert explain_change(stage, 1.5, {figure: now}, past, {}) is None


LATE_IN_DATA = Lateness("data", PERSISTENT, 0.5, {"data": 1.0})


def test_sentence_has_both_figures_and_leaves_out_what_is_not_known() -> None:
    """On one scale, with what the figure is of. What is said is not read again as a pattern."""
    for place, where in (("", ""), ("f[{own}] (a.py:1)", " in `f[{own}] (a.py:1)`")):
        asleep = evidence({"data": 0.35}, {}, at("data", place, sleep=1.0))
        cause = why(LATE_IN_DATA, asleep, peers())
        assert cause.sentence == f"it sleeps{where} for 215 ms a step"
        assert cause.figure == "data_seconds"
        assert cause.value == pytest.approx(0.215)
        assert cause.peers_value == pytest.approx(0.04 * 0.995)
    # Nobody measured how long a step takes.
    cause = why(LATE_IN_DATA, Evidence({}, [ThreadState("data", "sleep", 1.0)]), {})
    assert cause.sentence == "it sleeps for 100 % of its time"
    assert (cause.figure, cause.value, cause.peers_value) == ("", None, None)
    # Of healthy peers some figures need not be known.
    cause = why(LATE_IN_DATA, Evidence({"gc_ratio": 0.4}), None)
    assert cause.sentence == "it spends 40 % of the time collecting garbage, its peers 0 %"
    # The driver's reason for a low clock may stand with the throttling.
    capped = {"gpu_throttled_ratio": "power cap"}
    assert found({"forward": 0.3}, {"sm_clock_hertz": 1e9}, facts=capped).sentence == (
        "its SM clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C"
    )


@pytest.mark.parametrize(
    ("figure", "own", "peers", "written"),
    [
        ("sm_clock_hertz", 1.41e9, 1.95e9, ("1.41 GHz", "1.95")),
        ("main_run_queue_ratio", 0.344, 0.0214, ("34 %", "2.1 %")),
        ("read_bytes_per_second", 2.4e9, 3e6, ("2.4 GB/s", "0.003")),
        ("node_mount_operation_seconds", 0.05, 0.0008, ("50 ms", "0.8")),
        ("gpu_temperature_celsius", 87.4, None, ("87 °C", "")),
        ("read_bytes_per_second", 240e6, None, ("240 MB/s", "")),
        ("node_network_link_bytes_per_second", 10.4e9, None, ("10.4 GB/s", "")),
        ("major_faults_per_second", 1234.0, None, ("1,234 a second", "")),
        ("node_disk_read_seconds", 0.0004, None, ("400 µs", "")),
        ("tokens_per_step", 8192.0, None, ("8,192", "")),
        ("nvlink_links_up", 9.0, None, ("9", "")),
    ],
)
def test_figure_is_written_in_its_unit(
    figure: str, own: float, peers: float | None, written: tuple[str, str]
) -> None:
    """GHz, °C, %, MB/s; peers on the same scale, whose unit is said once, except for percent."""
    assert text(figure, own) == written[0]
    assert peers is None or pair(figure, own, peers) == written

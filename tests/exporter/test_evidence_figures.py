"""The figures of a rank: their means over a window, in bounded memory, and where they come from."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample as Line

from exporter.causes.excess import stage_figure
from exporter.causes.row import OWN_STAGES
from exporter.evidence.gpu import FOR_REASON, GpuReadings, facts_of
from exporter.evidence.node import NodeReadings
from exporter.evidence.peers import quantiles_of
from exporter.evidence.rank import RankReadings
from exporter.evidence.ring import DEPTH_SECONDS, MOST_FIGURES, Increment, Ring
from exporter.nvml.sample import GpuProcess, GpuSample, MigDevice
from exporter.processes.cgroup_cost import CgroupCost
from exporter.processes.host_watch import HostCost
from exporter.processes.rank_cost import NANOSECONDS, Cost
from exporter.ranks.store import HeldRank
from exporter.scrape.sampling import CollectorRun
from rank_probe.wire.stages import STAGES
from tests.exporter.evidence_node import FakeNode
from tests.exporter.fake_proc import process
from tests.exporter.live_node import FIRST_PID, rows
from tests.exporter.snapshots import snapshot

RANK = ("demo", 2)


def numbers(text: str) -> dict[str, float]:
    """Parse `NAME=NUMBER ...` into numbers by name."""
    pairs = (each.rsplit("=", 1) for each in text.split())
    return {name: float(value) for name, value in pairs}


def filled(*seconds: float) -> Ring:
    """Return a ring whose figure `clock` equals, in each interval, the time at its end."""
    ring, last = Ring(), 0.0
    for now in seconds:
        ring.add(RANK, now, [Increment("clock", now * (now - last), now - last)])
        last = now
    return ring


def means(*rounds: Sequence[Increment]) -> dict[str, float]:
    """Return the means over samples that are five seconds apart."""
    ring = Ring({"resent": 100.0})
    for number, each in enumerate(rounds):
        ring.add(RANK, 5.0 * number, each)
    return ring.means(RANK, 0.0)


def test_window_without_two_samples_has_no_figures() -> None:
    """A new rank or a missing GPU has no figures: a mean needs two samples in its window.

    A driver that has stopped answering leaves no old figures behind. A window in the past excludes
    later samples, and figures that did not exist yet.
    """
    ring = filled(*range(0, 101, 5))
    for each, since in ((Ring(), 0.0), (filled(100.0), 0.0), (ring, 100.0), (ring, 101.0)):
        assert each.means(RANK, since) == {}
        assert each.covered_seconds(RANK, since) == 0.0

    ring.add(RANK, 105.0, [Increment("new", 1.0, 1.0)])
    assert ring.means(RANK, 40.0, until=50.0) == {"clock": pytest.approx(47.5)}
    assert ring.covered_seconds(RANK, 38.0, until=52.0) == 10.0
    assert ring.means(RANK, 41.0, until=49.0) == {}
    assert ring.covered_seconds(RANK, 41.0, until=44.0) == 0.0


@pytest.mark.parametrize("step", [5, 2])
def test_older_windows_are_right_to_a_minute_in_bounded_memory(step: int) -> None:
    """Thinning loses no amount; it only makes a window begin up to a minute late."""
    ring, now = filled(*range(0, 7_201, step)), 7_200 // step * step
    for window in (290.0, 900.0, DEPTH_SECONDS, 7_000.0):
        covered = ring.covered_seconds(RANK, now - window)
        assert min(window, DEPTH_SECONDS) - 60.0 <= covered <= min(window, DEPTH_SECONDS)
        mean = ring.means(RANK, now - window)["clock"]
        assert mean == pytest.approx(now - (covered - step) / 2)
    # Of samples older than two minutes, one is kept per minute.
    assert not ring.means(RANK, now - 1_000.0, until=now - 950.0)
    # Subjects that are gone are forgotten; a restarted rank is a new subject.
    ring.keep({"node"})
    assert ring.means(RANK, 0.0) == {}
    # The number of figures is bounded, wherever new names come from.
    many = [Increment(f"figure {number}", 1.0, 1.0) for number in range(2 * MOST_FIGURES)]
    assert len(means([], many)) == MOST_FIGURES


# The growth of figures in each sample, as AMOUNT/WEIGHT | their means.
MEANS = """
# A step counts as much as any other step; samples from before a figure as nothing.
step_seconds=9/9 ; step_seconds=3/1 gc_ratio=.5/5 | step_seconds=1.2 gc_ratio=.1
# One NaN does not spoil a figure for as long as it is kept.
clock=5/5 clock=nan/5 ; clock=5/5 clock=5/nan | clock=1
clock=5/5 clock=-inf/5 ; clock=5/5 clock=5/inf | clock=1
# The share of ten segments that were sent again says nothing about a network.
resent=1/499 idle=0/0 |
resent=1/499 ; resent=1/501 | resent=.002
"""


@pytest.mark.parametrize(("samples", "figures"), rows(MEANS))
def test_mean_weighs_what_it_is_a_mean_over(samples: str, figures: str) -> None:
    rounds = [
        [
            Increment(figure, *map(float, grown.split("/")))
            for figure, _, grown in (word.partition("=") for word in each.split())
        ]
        for each in samples.split(" ; ")
    ]
    assert means([], *rounds) == pytest.approx(numbers(figures))


def test_quantiles_are_the_thirds_and_the_middle() -> None:
    """Quantiles interpolate linearly, as numpy's do, over the ranks that have the figure."""
    figures = [{"clock": each} for each in (40.0, 10.0, 30.0, 20.0)]
    found = quantiles_of([*figures, {"power": 9.0}])

    assert found["clock"] == pytest.approx((20.0, 25.0, 30.0))
    assert found["power"] == (9.0, 9.0, 9.0)


# The snapshots of a rank, each `SECOND FIELD=NUMBER ...` | the figures over them.
RANK_CASES = """
# It is stuck, or starts; or has fallen silent, and keeps the means of the time before.
0 steps=0 data=1 ; 5 steps=0 data=1 ; 10 steps=0 data=1 |
5 steps=10 gc_pause_seconds=1 tokens=100 ; 5 steps=10 gc_pause_seconds=1 tokens=100 |
# Stages that nobody measured are not known, nor samples that nobody counts.
0 steps=10 ; 1 steps=20 |
0 steps=10 tokens=800 ; 5 steps=14 tokens=1200 | tokens_per_step=100
# Of the time between the snapshots, not between the looks at them.
100 gc_pause_seconds=3 ; 104 gc_pause_seconds=4 | gc_ratio=.25
# A stage that a rank lacks takes no time; one that occurs for the first time began at zero.
# The step has the wait for others, which is no stage of its own.
5 steps=10 data=1 sync=2 ; 9 steps=20 data=3 sync=6 eval=4 | \
data_seconds=.2 eval_seconds=.4 step_seconds=1 and 0 for others
"""
NO_TIME = {stage_figure(stage): 0.0 for stage in OWN_STAGES}


def held(said: str) -> HeldRank:
    """Return the store's entry for a rank that pushed the snapshot *said*."""
    second, _, fields = said.partition(" ")
    known = numbers(fields)
    stages = {name: known.pop(name) for name in STAGES if name in known}
    return HeldRank(snapshot(stage_seconds=stages, **known), float(second))


@pytest.mark.parametrize(("reports", "figures"), rows(RANK_CASES))
def test_figures_are_of_what_the_rank_has_told_since(reports: str, figures: str) -> None:
    readings = RankReadings()
    found = means(*[list(readings.read_steps(held(each))) for each in reports.split(" ; ")])

    named = numbers(figures.removesuffix("and 0 for others"))
    assert found == pytest.approx((NO_TIME if "others" in figures else {}) | named)


def test_process_that_hides_its_readings_has_no_figures() -> None:
    """Readings that permissions, an old kernel or a missing quota withhold are absent, not 0."""
    readings, nothing = RankReadings(), HostCost(Cost(), CgroupCost())
    rounds = [list(readings.read_host(nothing, 5.0 * n, None)) for n in range(1, 4)]
    assert means(*rounds) == {"major_faults_per_second": 0.0}

    # A counter that falls has not grown; a sample that is read twice adds nothing.
    used = [HostCost(Cost(running_nanoseconds=n * NANOSECONDS), CgroupCost()) for n in (9, 1, 4)]
    rounds = [list(readings.read_host(each, 20.0 + 5.0 * n)) for n, each in enumerate(used)]
    assert means(*rounds)["main_running_ratio"] == pytest.approx(0.6)
    assert list(readings.read_host(used[-1], 30.0)) == []


def gpu(**readings: Any) -> GpuSample:
    return GpuSample(0, up=True, uuid="GPU-0", **readings)


LOST = GpuSample(0, up=False, uuid="GPU-0")

# The samples of a GPU, five seconds apart, and the figures over them.
GPU_CASES = """
# No reading, or one sample: neither 0 nor an error.
- ; - ; - |
# A GPU that is newer than this exporter is not slow.
pcie_link_generation=9 pcie_link_width=16 ; pcie_link_generation=9 pcie_link_width=16 |
# Megahertz, milliwatts and percent become hertz, watts and ratios; levels are means.
- ; sm_clock_megahertz=1500 ; sm_clock_megahertz=1900 | sm_clock_hertz=1.7e9
- ; memory_clock_megahertz=2619 | memory_clock_hertz=2.619e9
- ; power_milliwatts=640000 | gpu_power_watts=640
- ; gpu_temperature_celsius=60 | gpu_temperature_celsius=60
- ; decoder_busy_percent=50 | gpu_decoder_ratio=0.5
- ; nvlink_links_up=18 | nvlink_links_up=18
- ; pcie_link_generation=5 pcie_link_width=16 | pcie_link_bytes_per_second=63.024e9
# One damaged packet is counted as an error and as a replay.
pcie_errors=1 pcie_replays=3 ; pcie_errors=6 pcie_replays=5 | pcie_errors_per_second=1
# What it counted while it was lost is not of the five seconds since it is back.
pcie_errors=0 ; lost ; pcie_errors=3600 ; pcie_errors=3601 | pcie_errors_per_second=0.2
# Old faults have been dealt with; a row that could not be remapped stays a fault.
ecc_uncorrected_errors=7 row_remap_failed=0 ; ecc_uncorrected_errors=7 row_remap_failed=0 | \
gpu_memory_faults=0
ecc_uncorrected_errors=7 row_remap_failed=0 ; ecc_uncorrected_errors=9 row_remap_failed=1 | \
gpu_memory_faults=3
row_remap_failed=1 ; row_remap_failed=1 | gpu_memory_faults=1
"""


def means_of(*samples: GpuSample) -> dict[str, float]:
    """Return the figures over *samples*, and check that a sample read twice adds nothing."""
    readings, ring = GpuReadings(), Ring()
    for number, each in enumerate(samples):
        ring.add("gpu", 5.0 * number, readings.read(each, 1e9 + 5.0 * number))
        assert readings.read(each, 1e9 + 5.0 * number) == []
    return ring.means("gpu", 0.0)


@pytest.mark.parametrize(("samples", "figures"), rows(GPU_CASES))
def test_figures_of_a_gpu(samples: str, figures: str) -> None:
    read = [each.strip(" -") for each in samples.split(" ; ")]

    found = means_of(*[LOST if each == "lost" else gpu(**numbers(each)) for each in read])
    assert found == pytest.approx(numbers(figures))


def test_old_fault_of_the_memory_explains_nothing() -> None:
    """Memory faults of more than an hour ago do not count."""
    readings = GpuReadings()
    for seconds, errors in ((0.0, 7), (5.0, 9), (7_205.0, 9), (7_210.0, 9)):
        found = readings.read(gpu(ecc_uncorrected_errors=errors), seconds)

    assert {each.figure: each.amount for each in found}["gpu_memory_faults"] == 0


def test_links_and_reasons_that_overlap_count_once() -> None:
    """An error in a link's count and in the total is one; MIG takes NVLinks down on purpose."""
    crc = [gpu(nvlink_errors={"crc": n}, nvlink_link_errors={"4": 10 * n}) for n in (1, 2)]
    reasons = ("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap")
    throttled = [gpu(throttle_seconds=dict.fromkeys(reasons, each)) for each in (0.0, 2.5)]

    assert means_of(*crc) == {"nvlink_errors_per_second": 2.0}
    ratios = ["gpu_throttled_ratio", *(FOR_REASON + each for each in reasons)]
    assert means_of(*throttled) == dict.fromkeys(ratios, 0.5)
    migs = gpu(nvlink_links_up=0, mig_devices=(MigDevice("MIG-0", 1, 0, "1g.10gb"),))
    assert means_of(migs, migs) == {}


def test_facts_say_what_the_figures_of_a_gpu_are_of() -> None:
    """The most frequent throttle reason is given, of nearly equal ones the most specific; no P0."""
    means = {f"{FOR_REASON}hw_slowdown": 0.5, f"{FOR_REASON}hw_power_brake_slowdown": 0.48}
    hot = means | {f"{FOR_REASON}sw_thermal_slowdown": 0.9}
    link = {"pcie_link_generation": 4, "pcie_link_width": 8}

    assert facts_of(gpu(performance_state=0), {}) == {}
    assert facts_of(gpu(), means) == {"gpu_throttled_ratio": "power brake"}
    assert facts_of(gpu(), hot) == {"gpu_throttled_ratio": "too hot"}
    assert facts_of(gpu(performance_state=2, **link), {}) == {
        "memory_clock_hertz": "P2",
        "pcie_link_bytes_per_second": "generation 4, 8 lanes",
    }


SHORT = {
    "busy": "node_disk_busy_seconds_total",
    "reads": "node_disk_reads_total",
    "read_seconds": "node_disk_read_seconds_total",
    "cpu": "node_cpu_seconds_total",
    "waited": "node_pressure_waiting_seconds_total",
    "sent": "node_tcp_sent_segments_total",
    "again": "node_tcp_retransmitted_segments_total",
    "drops_in": "node_network_receive_drops_total",
    "drops_out": "node_network_transmit_drops_total",
    "errors": "node_network_errors_total",
    "speed": "node_network_speed_bytes_per_second",
    "sent_bytes": "node_network_transmit_bytes_total",
    "port_errors": "infiniband_errors_total",
    "port_bytes": "infiniband_transmit_bytes_total",
    "port_waits": "infiniband_transmit_wait_total",
    "port_rate": "infiniband_rate_bytes_per_second",
    "congestion": "infiniband_congestion_events_total",
}

# Collectors | what they show every five seconds | the figures | where a figure was measured.
NODE_CASES = """
# Counters are told by the second; those of other resources and modes have no figure.
node_pressure | waited{resource=io}=10 waited{resource=memory}=90 ; \
waited{resource=io}=12 waited{resource=memory}=99 | node_io_waiting_ratio=0.4 |
node_cpu | cpu{mode=steal}=10 cpu{mode=user}=9 ; cpu{mode=steal}=12 cpu{mode=user}=99 | \
node_steal_cpus=0.4 |
node_cpu | node_cpu_throttled_seconds_total=10 ; node_cpu_throttled_seconds_total=12 | \
node_cpu_throttled_ratio=0.4 |
node_memory | node_numa_misses_total=10 ; node_numa_misses_total=12 | \
node_numa_misses_per_second=0.4 |
# One that reads once in ten seconds, or fails meanwhile, has not stood still.
node_cpu | cpu{mode=steal}=10 ; fails ; waits ; cpu{mode=steal}=13 ; waits | node_steal_cpus=0.2 |
# A level is a mean over time.
node_cpu_clock | node_cpu_clock_hertz=9 ; node_cpu_clock_hertz=2 ; node_cpu_clock_hertz=4 | \
node_cpu_clock_hertz=3 |
# While another disk was shown, this one was busy for longer than the time of a reading.
node_disk | busy{device=sda}=100 ; busy{device=sdb}=10 ; busy{device=sda}=400 ; \
busy{device=sda}=401 | node_disk_busy_ratio=0.2 | node_disk_busy_ratio=sda
# The time of a read is the mean of reads; a disk that reads nothing has none.
node_disk | reads{device=sda}=10 read_seconds{device=sda}=1 ; \
reads{device=sda}=10 read_seconds{device=sda}=1 ; \
reads{device=sda}=14 read_seconds{device=sda}=1.2 | node_disk_read_seconds=0.05 |
node_disk | reads{device=sda}=10 read_seconds{device=sda}=1 ; same | |
node_mounts | node_mount_operations_total{export=/data,fstype=nfs4}=1 ; same | | \
node_mount_operation_seconds=/data (nfs4)
# Packets that are dropped are errors too; segments that are sent again are a share.
node_network | drops_in{device=eth0}=1 drops_out{device=eth0}=1 errors{device=eth0}=1 ; \
drops_in{device=eth0}=2 drops_out{device=eth0}=3 errors{device=eth0}=5 | \
node_network_errors_per_second=1.4 |
# Errors of ports count with those of devices, and their time once.
node_network node_infiniband | errors{device=eth0}=1 port_errors{port=a}=1 ; \
errors{device=eth0}=6 port_errors{port=a}=6 | node_network_errors_per_second=2 |
node_network | sent=5 again=5 ; sent=205 again=7 | \
node_tcp_retransmitted_ratio=0.01 node_network_errors_per_second=0 |
# The link is that of the device that sends most: one for administrators is not the network, a
# virtual one has no speed.
node_network | sent_bytes{device=eth0}=1e12 sent_bytes{device=mgmt0}=1e6 \
sent_bytes{device=veth0}=1e13 speed{device=eth0}=25e9 speed{device=mgmt0}=1e8 ; same | \
node_network_link_bytes_per_second=25e9 node_network_errors_per_second=0 | \
node_network_link_bytes_per_second=eth0
node_network | sent_bytes{device=eth0}=1e12 ; same | node_network_errors_per_second=0 |
# The slowest port that was connected is the link.
node_infiniband | port_rate{device=a,port=1}=50e9 port_rate{device=b,port=1}=50e9 ; \
port_rate{device=a,port=1}=50e9 port_rate{device=b,port=1}=12.5e9 port_rate{device=c,port=1}=0 | \
node_network_link_bytes_per_second=12.5e9 | node_network_link_bytes_per_second=b port 1
# By the sign that says most: ticks of waiting ports, or packets that announce congestion.
node_infiniband | port_bytes{port=a}=0 port_waits{port=a}=0 congestion{port=a}=0 ; \
port_bytes{port=a}=8e6 port_waits{port=a}=4e5 congestion{port=a}=10 | \
node_network_waiting_ratio=0.4 |
node_infiniband | port_bytes{port=a}=8e6 port_waits{port=a}=4e5 ; same | |
"""


def family_of(text: str) -> Metric:
    """Parse `SERIES=NUMBER ...`, with names of SHORT, into a family that a collector shows."""
    family = GaugeMetricFamily("all", "Of any name.")
    for key, value in numbers(text).items():
        name, _, labels = key.partition("{")
        pairs = dict(re.findall(r"(\w+)=([^,}]+)", labels))
        family.samples.append(Line(f"rankskew_{SHORT.get(name, name)}", pairs, value))
    return family


@pytest.mark.parametrize(("collectors", "looks", "figures", "fact"), rows(NODE_CASES))
def test_figures_of_a_node(collectors: str, looks: str, figures: str, fact: str) -> None:
    shown: dict[str, CollectorRun] = {}
    readings, ring, values = NodeReadings(shown.get), Ring(), ""
    for number, look in enumerate(["waits", *looks.split(" ; ")]):
        values = values if look in ("same", "fails", "waits") else look
        if look != "waits":
            run = CollectorRun((family_of(values),), look != "fails", 5.0 * number)
            shown.update(dict.fromkeys(collectors.split(), run))
        ring.add("node", 5.0 * number, readings.read())

    assert ring.means("node", 0.0) == pytest.approx(numbers(figures))
    figure, _, what = fact.partition("=")
    assert readings.facts.get(figure, "") == what


def test_what_cannot_be_read_hides_nothing_else() -> None:
    """A missing GPU, a hidden process, or a hanging driver or /proc costs only its own figures.

    The hang is reported elsewhere.
    """
    # The workers' ratio is the wait for a CPU as a share of the time in which they want one.
    known = numbers("""
        data_seconds=.05 step_seconds=.5 main_running_ratio=.5 main_run_queue_ratio=.2
        workers_run_queue_ratio=.25 saturated_workers=3 read_bytes_per_second=1e6
        major_faults_per_second=2 io_waiting_ratio=.1 cpu_quota_throttled_ratio=.02
    """)
    node = FakeNode(ranks=2)
    node.after(30)
    found = node.figures(1)
    assert {name: found[name] for name in known} == pytest.approx(known)
    assert not [name for name in found if name.startswith(("gpu", "sm_clock"))]

    node = FakeNode(ranks=2, gpus=2)
    node.host.hidden = {1}
    node.processes.clear()
    node.after(30)
    assert "main_running_ratio" not in node.figures(1)
    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(1).keys()
    assert "main_running_ratio" in node.figures(0)
    assert [node.sampler.pid(node.held(rank)) for rank in (0, 1)] == [FIRST_PID, None]

    node.host.hangs = node.processes_hang = True
    node.after(40)
    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(0).keys()
    assert "main_running_ratio" not in node.figures(0)
    assert node.sampler.facts(node.held(0), 0.0) == {}


def test_rank_has_the_figures_of_its_own_gpu_and_process_and_of_its_node() -> None:
    """GPU, process and CPU placement are figures of one rank; the node's count for all ranks."""
    node = FakeNode(ranks=2, gpus=2)
    node.gpus[0] = replace(node.gpus[0], numa_node=0, cpu_affinity=(1, 2, 3))
    node.throttled_ratio = 0.1
    node.clock(1_400, 1)
    node.after(30)
    assert [node.figures(rank)["sm_clock_hertz"] for rank in (0, 1)] == [1.9e9, 1.4e9]
    for rank in (0, 1):
        assert node.figures(rank)["node_cpu_throttled_ratio"] == pytest.approx(0.1)
    assert node.figures(0)["cpus_near_gpu_ratio"] == 0.5
    assert "cpus_near_gpu_ratio" not in node.figures(1)

    # A GPU clock held for half of the time counts for half, even if the node's wall clock jumps.
    node.behind_seconds -= 3_600.0
    node.clock(1_800, 1)
    node.after(10)
    assert node.figures(1, 20.0)["sm_clock_hertz"] == pytest.approx(1.6e9, rel=0.05)
    # A rank that restarts has its own figures only, not those of its former process.
    node.restart(1)
    node.after(1)
    assert not {"step_seconds", "main_running_ratio"} & node.figures(1, 600.0).keys()
    assert node.figures(0, 600.0)["step_seconds"] == pytest.approx(0.5)


def test_foreign_process_is_counted_and_named() -> None:
    """The fact gives the process's name, PID and user id, without control characters.

    Two ranks that chose the same GPU are foreign to each other.
    """
    node = FakeNode(ranks=2, gpus=2)
    node.processes[7] = process(7, name="py\x1b[1m", uid=1001)
    for others, count, fact in (
        ([7], 1.0, {"gpu_foreign_processes": "py?[1m, PID 7 of user 1001"}),
        ([], 0.0, {}),
        ([FIRST_PID], 1.0, {"gpu_foreign_processes": "rank 0 of job demo"}),
    ):
        if others == [FIRST_PID]:
            node.gpus[0] = replace(node.gpus[0], processes=())
            node.change(0, rank_info={"gpu_uuid": "GPU-1"})
        listed = tuple(map(GpuProcess, [FIRST_PID + 1, *others]))
        node.gpus[1] = replace(node.gpus[1], processes=listed)
        node.after(40)
        assert node.figures(1)["gpu_foreign_processes"] == count
        assert node.sampler.facts(node.held(1), 0.0) == fact
        assert node.figures(0)["gpu_foreign_processes"] == (others == [FIRST_PID])

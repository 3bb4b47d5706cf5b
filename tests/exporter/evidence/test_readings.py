"""Figures of a GPU and of its node come from their samples, each look once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample as Line

from exporter.evidence.gpu import FOR_REASON, GpuReadings, facts_of
from exporter.evidence.node import NodeReadings
from exporter.evidence.ring import Ring
from exporter.nvml.sample import GpuSample, MigDevice
from exporter.scrape.sampling import CollectorRun, Scrape
from tests.exporter.clock import Clock


def gpu(**readings: Any) -> GpuSample:
    return GpuSample(0, up=True, uuid="GPU-0", **readings)


LOST = GpuSample(0, up=False, uuid="GPU-0")

# The samples of a GPU, five seconds apart, and the figures over them.
GPU_CASES = """
# No reading, or one sample: neither 0 nor an error.
- ; - ; - |
lost ; lost ; lost |
sm_clock_megahertz=1980 |
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


def cases(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def numbers(text: str) -> dict[str, float]:
    """Return what `NAME=NUMBER ...` says."""
    pairs = (each.rsplit("=", 1) for each in text.split())
    return {name: float(value) for name, value in pairs}


def means_of(*samples: GpuSample) -> dict[str, float]:
    """Return the figures; a sample that is read again says nothing new."""
    readings, ring = GpuReadings(), Ring()
    for number, each in enumerate(samples):
        ring.add("gpu", 5.0 * number, readings.read(each, 1e9 + 5.0 * number))
        assert readings.read(each, 1e9 + 5.0 * number) == []
    return ring.means("gpu", 0.0)


@pytest.mark.parametrize("case", cases(GPU_CASES))
def test_figures_of_a_gpu(case: str) -> None:
    samples, _, figures = case.partition("|")
    read = [each.strip(" -") for each in samples.split(" ; ")]

    found = means_of(*[LOST if each == "lost" else gpu(**numbers(each)) for each in read])
    assert found == pytest.approx(numbers(figures))


def test_links_and_reasons_that_overlap_count_once() -> None:
    """An error is counted on its link and in all. MIG takes NVLinks down on purpose."""
    crc = [gpu(nvlink_errors={"crc": n}, nvlink_link_errors={"4": 10 * n}) for n in (1, 2)]
    reasons = ("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap")
    throttled = [gpu(throttle_seconds=dict.fromkeys(reasons, each)) for each in (0.0, 2.5)]

    assert means_of(*crc) == {"nvlink_errors_per_second": 2.0}
    assert means_of(*throttled) == {
        "gpu_throttled_ratio": 0.5,
        **{FOR_REASON + each: 0.5 for each in reasons},
    }
    migs = gpu(nvlink_links_up=0, mig_devices=(MigDevice("MIG-0", 1, 0, "1g.10gb"),))
    assert means_of(migs, migs) == {}


def test_facts_say_what_the_figures_of_a_gpu_are_of() -> None:
    """The reason that is there most, and of those as frequent the one that explains; not P0."""
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


# The values of a collector: by the name of the series, without our prefix, and its labels.
Values = Mapping[str, float]


def family_of(values: Values) -> Metric:
    family = GaugeMetricFamily("all", "Of any name.")
    for key, value in values.items():
        name, _, labels = key.partition("{")
        pairs = dict(re.findall(r"(\w+)=([^,}]+)", labels))
        family.samples.append(Line(f"rankskew_{name}", pairs, value))
    return family


class Shown:
    """Collectors that show what a test wants, and the figures that come of it."""

    def __init__(self) -> None:
        self.shown: dict[str, CollectorRun] = {}
        self.ring = Ring()
        self.readings = NodeReadings(self.shown.get)
        self.now = 0.0
        self.ring.add("node", self.now, [])

    def look(self, succeeded: bool = True, /, **collectors: Values) -> None:
        """Let *collectors* show values, five seconds after the look before, and read them."""
        self.now += 5.0
        for name, values in collectors.items():
            self.shown[name] = CollectorRun((family_of(values),), succeeded, self.now)
        self.ring.add("node", self.now, self.readings.read())

    def means(self) -> dict[str, float]:
        return self.ring.means("node", 0.0)


STEAL = "node_cpu_seconds_total{mode=steal}"
WAITED = "node_pressure_waiting_seconds_total"
SHORT = {
    "busy": "node_disk_busy_seconds_total",
    "reads": "node_disk_reads_total",
    "read_seconds": "node_disk_read_seconds_total",
    "cpu": "node_cpu_seconds_total",
    "waited": WAITED,
    "sent": "node_tcp_sent_segments_total",
    "again": "node_tcp_retransmitted_segments_total",
    "drops_in": "node_network_receive_drops_total",
    "drops_out": "node_network_transmit_drops_total",
    "errors": "node_network_errors_total",
    "port_bytes": "infiniband_transmit_bytes_total",
    "port_waits": "infiniband_transmit_wait_total",
    "congestion": "infiniband_congestion_events_total",
}

# A collector, what it shows each five seconds, and the figures over it.
NODE_CASES = """
# Counters are told by the second; those of other resources and modes have no figure.
node_pressure | waited{resource=io}=10 waited{resource=memory}=90 ; \
waited{resource=io}=12 waited{resource=memory}=99 | node_io_waiting_ratio=0.4
node_cpu | cpu{mode=steal}=10 cpu{mode=user}=9 ; cpu{mode=steal}=12 cpu{mode=user}=99 | \
node_steal_cpus=0.4
node_cpu | node_cpu_throttled_seconds_total=10 ; node_cpu_throttled_seconds_total=12 | \
node_cpu_throttled_ratio=0.4
node_memory | node_numa_misses_total=10 ; node_numa_misses_total=12 | \
node_numa_misses_per_second=0.4
# A level is a mean over time.
node_cpu_clock | node_cpu_clock_hertz=9 ; node_cpu_clock_hertz=2 ; node_cpu_clock_hertz=4 | \
node_cpu_clock_hertz=3
# While another disk was shown, this one was busy for longer than the time of a reading.
node_disk | busy{device=sda}=100 ; busy{device=sdb}=10 ; busy{device=sda}=400 ; \
busy{device=sda}=401 | node_disk_busy_ratio=0.2
# The time of a read is the mean of reads; a disk that reads nothing has none.
node_disk | reads{device=sda}=10 read_seconds{device=sda}=1 ; \
reads{device=sda}=10 read_seconds{device=sda}=1 ; \
reads{device=sda}=14 read_seconds{device=sda}=1.2 | node_disk_read_seconds=0.05
node_disk | reads{device=sda}=10 read_seconds{device=sda}=1 ; \
reads{device=sda}=10 read_seconds{device=sda}=1 |
# Packets that are dropped are errors too; segments that are sent again are a share.
node_network | drops_in{device=eth0}=1 drops_out{device=eth0}=1 errors{device=eth0}=1 ; \
drops_in{device=eth0}=2 drops_out{device=eth0}=3 errors{device=eth0}=5 | \
node_network_errors_per_second=1.4
node_network | sent=5 again=5 ; sent=205 again=7 | \
node_tcp_retransmitted_ratio=0.01 node_network_errors_per_second=0
# By the sign that says most: ticks of waiting ports, or packets that announce congestion.
node_infiniband | port_bytes{port=a}=0 port_waits{port=a}=0 congestion{port=a}=0 ; \
port_bytes{port=a}=8e6 port_waits{port=a}=4e5 congestion{port=a}=10 | \
node_network_waiting_ratio=0.4
node_infiniband | port_bytes{port=a}=8e6 port_waits{port=a}=4e5 ; \
port_bytes{port=a}=8e6 port_waits{port=a}=4e5 |
"""


def shows(text: str) -> Values:
    """Return what a collector shows by `SERIES=NUMBER ...`, of which some have short names."""
    known = {}
    for key, value in numbers(text).items():
        name, brace, labels = key.partition("{")
        known[SHORT.get(name, name) + brace + labels] = value
    return known


@pytest.mark.parametrize("case", cases(NODE_CASES))
def test_figures_of_a_node(case: str) -> None:
    collector, looks, figures = (each.strip() for each in case.split("|"))
    node = Shown()
    for each in looks.split(" ; "):
        node.look(**{collector: shows(each)})

    assert node.means() == pytest.approx(numbers(figures))


class Waiting:
    """A collector by whose counter half of the tasks wait for a CPU."""

    name = "node_pressure"
    interval_seconds = 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield family_of({f"{WAITED}{{resource=cpu}}": self._clock() / 2})


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_wall_clock_that_is_set_changes_no_share_of_the_time(step: float) -> None:
    """Half of an hour that was no hour would be next to nothing."""
    wall, monotonic = Clock(), Clock()
    scrape = Scrape([Waiting(monotonic)], monotonic=monotonic, wall=wall)
    readings, ring = NodeReadings(scrape.latest), Ring()
    for seconds in (0.0, 5.0, 5.0 + step, 5.0):
        monotonic.seconds += 5.0
        wall.seconds += seconds
        list(scrape.collect())
        ring.add("node", monotonic(), readings.read())

    assert ring.means("node", 0.0)["node_cpu_waiting_ratio"] == pytest.approx(0.5)


def test_sample_counts_once_and_for_its_whole_time() -> None:
    """A collector that reads once in ten seconds, or fails meanwhile, has not stood still."""
    node = Shown()
    node.look(node_cpu={STEAL: 10.0})
    node.look(False, node_cpu={}, node_disk={})
    node.look()
    node.look(node_cpu={STEAL: 12.0})
    node.look()

    assert node.means() == {"node_steal_cpus": pytest.approx(2 / 15)}


def test_facts_name_the_disk_and_the_mount() -> None:
    """What the figures are of is to be read in the sentence."""
    node = Shown()
    mount = "node_mount_operations_total{export=/data,fstype=nfs4}"
    disk = "busy{device=nvme0n1}=1 reads{device=nvme0n1}=1 read_seconds{device=nvme0n1}=1"
    for _ in range(2):
        node.look(node_disk=shows(disk), node_mounts={mount: 1.0})

    assert node.readings.facts == {
        "node_disk_busy_ratio": "nvme0n1",
        "node_disk_read_seconds": "nvme0n1",
        "node_mount_operation_seconds": "/data (nfs4)",
    }


LINK = "node_network_link_bytes_per_second"


@pytest.mark.parametrize(("speed", "link"), [(25e9, "eth0"), (1e7, "eth0"), (None, None)])
def test_link_is_that_of_the_device_that_sends_most(speed: float | None, link: str | None) -> None:
    """A device for administrators is not the network; a virtual one has no speed."""
    node = Shown()
    looks = {
        f"node_network_transmit_bytes_total{{device={device}}}": sent
        for device, sent in (("eth0", 1e12), ("mgmt0", 1e6), ("veth0", 1e13))
    }
    if speed:
        looks["node_network_speed_bytes_per_second{device=eth0}"] = speed
        looks["node_network_speed_bytes_per_second{device=mgmt0}"] = 1e8
    for _ in range(2):
        node.look(node_network=looks)

    assert node.means().get(LINK) == speed
    assert node.readings.facts.get(LINK) == link


def test_slowest_port_that_was_connected_is_the_link() -> None:
    """With its name, for who has to look at it."""
    node = Shown()
    for last in (50e9, 12.5e9):
        rates = {"mlx5_0": 50e9, "mlx5_1": last, "mlx5_2": 0.0}
        rate = "infiniband_rate_bytes_per_second{device=%s,port=1}"
        node.look(node_infiniband={rate % name: value for name, value in rates.items()})

    assert (node.means()[LINK], node.readings.facts[LINK]) == (12.5e9, "mlx5_1 port 1")


def test_errors_of_ports_count_with_those_of_devices() -> None:
    """Their time counts once."""
    node = Shown()
    for count in (1.0, 6.0):
        node.look(
            node_infiniband={"infiniband_errors_total{port=a}": count},
            node_network={"node_network_errors_total{device=eth0}": count},
        )

    assert node.means() == {"node_network_errors_per_second": pytest.approx(10 / 5)}

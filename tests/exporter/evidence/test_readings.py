"""Figures of a GPU and of its node come from their samples, each look once."""

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


def means_of(*samples: GpuSample) -> dict[str, float]:
    """Return the figures over *samples*, which are five seconds apart."""
    readings, ring = GpuReadings(), Ring()
    for number, each in enumerate(samples):
        ring.add("gpu", 5.0 * number, readings.read(each, 1e9 + 5.0 * number))
    return ring.means("gpu", 0.0)


@pytest.mark.parametrize(
    "sample",
    [
        gpu(),
        GpuSample(0, up=False, uuid="GPU-0"),
        # A GPU that is newer than this exporter is not slow.
        gpu(pcie_link_generation=9, pcie_link_width=16),
        # MIG takes NVLinks down on purpose.
        gpu(nvlink_links_up=0, mig_devices=(MigDevice("MIG-0", 1, 0, "1g.10gb"),)),
    ],
)
def test_what_is_not_known_is_no_figure(sample: GpuSample) -> None:
    """No reading, a lost GPU: neither 0 nor an error."""
    assert means_of(sample, sample, sample) == {}


def test_first_sample_and_a_repeated_one_say_nothing() -> None:
    """There is no time that they are of."""
    readings = GpuReadings()

    assert readings.read(gpu(sm_clock_megahertz=1_980), 100.0) == []
    assert readings.read(gpu(sm_clock_megahertz=1_980), 100.0) == []


def test_levels_are_means_in_base_units() -> None:
    """Megahertz, milliwatts and percent become hertz, watts and ratios."""
    usual = gpu(
        memory_clock_megahertz=2_619,
        power_milliwatts=640_000,
        gpu_temperature_celsius=60,
        decoder_busy_percent=50.0,
        nvlink_links_up=18,
        pcie_link_generation=5,
        pcie_link_width=16,
    )
    found = means_of(usual, *[gpu(sm_clock_megahertz=each) for each in (1_500, 1_900)], usual)

    assert found == pytest.approx(
        {
            "sm_clock_hertz": 1.7e9,
            "memory_clock_hertz": 2.619e9,
            "gpu_power_watts": 640.0,
            "gpu_temperature_celsius": 60.0,
            "gpu_decoder_ratio": 0.5,
            "nvlink_links_up": 18.0,
            "pcie_link_bytes_per_second": 16 * 3.939e9,
        }
    )


def test_one_damaged_packet_is_one_error() -> None:
    """It is counted as an error and as a replay, on its link and in all: never twice."""
    found = means_of(
        gpu(pcie_errors=1, pcie_replays=3, nvlink_errors={"crc": 1}, nvlink_link_errors={"4": 1}),
        gpu(pcie_errors=6, pcie_replays=5, nvlink_errors={"crc": 2}, nvlink_link_errors={"4": 11}),
    )

    assert found == {"pcie_errors_per_second": 1.0, "nvlink_errors_per_second": 2.0}


def test_gpu_that_was_lost_does_not_catch_up() -> None:
    """What it counted in an hour without readings is not of the five seconds since it is back."""
    readings = GpuReadings()
    readings.read(gpu(pcie_errors=0), 0.0)
    readings.read(GpuSample(0, up=False), 5.0)

    assert readings.read(gpu(pcie_errors=3_600, sm_clock_megahertz=1_980), 3_600.0) == []
    assert [each.amount for each in readings.read(gpu(pcie_errors=3_601), 3_605.0)] == [1.0]


def test_reasons_to_throttle_overlap() -> None:
    half = dict.fromkeys(("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"), 2.5)
    found = means_of(gpu(throttle_seconds=dict.fromkeys(half, 0.0)), gpu(throttle_seconds=half))

    assert found["gpu_throttled_ratio"] == 0.5
    assert found[FOR_REASON + "hw_slowdown"] == 0.5


def test_faults_of_the_memory_count_from_the_first_sample() -> None:
    """Old ones have been dealt with; a row that could not be remapped stays a fault."""
    old = gpu(ecc_uncorrected_errors=7, row_remap_failed=0)
    new = gpu(ecc_uncorrected_errors=9, row_remap_failed=1)

    assert means_of(old, old) == {"gpu_memory_faults": 0.0}
    assert means_of(old, new) == {"gpu_memory_faults": 3.0}
    assert means_of(gpu(row_remap_failed=1), gpu(row_remap_failed=1)) == {"gpu_memory_faults": 1.0}


def test_facts_say_what_the_figures_are_of() -> None:
    """The reason that is there most, and of those as frequent the one that explains; not P0."""
    means_of = {f"{FOR_REASON}hw_slowdown": 0.5, f"{FOR_REASON}hw_power_brake_slowdown": 0.48}
    link = {"pcie_link_generation": 4, "pcie_link_width": 8}

    assert facts_of(gpu(performance_state=0), {}) == {}
    assert facts_of(gpu(), means_of) == {"gpu_throttled_ratio": "power brake"}
    assert facts_of(gpu(), means_of | {f"{FOR_REASON}sw_thermal_slowdown": 0.9}) == {
        "gpu_throttled_ratio": "too hot"
    }
    assert facts_of(gpu(performance_state=2, **link), {}) == {
        "memory_clock_hertz": "P2",
        "pcie_link_bytes_per_second": "generation 4, 8 lanes",
    }


# The values of a collector, by the name of the series and, behind it, labels with their values.
Values = Mapping[str | tuple[str, ...], float]
ETH = ("device", "eth0")
WAITED = "rankskew_node_pressure_waiting_seconds_total"
CPU = "rankskew_node_cpu_seconds_total"
LINK = "node_network_link_bytes_per_second"
PORT = ("port", "mlx5_0:1")


class FakeNode:
    """Collectors that show what a test wants, and the figures that come of it."""

    def __init__(self) -> None:
        self.shown: dict[str, CollectorRun] = {}
        self.ring = Ring()
        self.readings = NodeReadings(self.shown.get)
        self.now = 0.0

    def look(self, collector: str = "", values: Values | None = None, **changes: Any) -> None:
        """Let *collector* show *values*, five seconds after the look before, and read them."""
        self.now += 5.0
        if values is not None:
            families = (_family(values),)
            known = {"succeeded": True, "sampled_seconds": self.now}
            self.shown[collector] = CollectorRun(families, **{**known, **changes})
        self.ring.add("node", self.now, self.readings.read())

    def means(self) -> dict[str, float]:
        return self.ring.means("node", 0.0)


def _family(values: Values) -> Metric:
    family = GaugeMetricFamily("all", "Of any name.")
    for key, value in values.items():
        name, *pairs = (key,) if isinstance(key, str) else key
        labels = dict(zip(pairs[::2], pairs[1::2], strict=True))
        family.samples.append(Line(name, labels, value))
    return family


def disk(device: str, busy: float, reads: float = 0.0, seconds: float = 0.0) -> Values:
    return {
        ("rankskew_node_disk_busy_seconds_total", "device", device): busy,
        ("rankskew_node_disk_reads_total", "device", device): reads,
        ("rankskew_node_disk_read_seconds_total", "device", device): seconds,
    }


def means_of_looks(collector: str, *looks: Values) -> dict[str, float]:
    """Return the figures after *looks* at one collector."""
    node = FakeNode()
    node.ring.add("node", 0.0, [])
    for each in looks:
        node.look(collector, each)
    return node.means()


class Waiting:
    """A collector by whose counter half of the tasks wait for a CPU."""

    name = "node_pressure"
    interval_seconds = 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield _family({(WAITED, "resource", "cpu"): self._clock() / 2})


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


def test_collector_that_fails_hides_nobody() -> None:
    """What was counted meanwhile is of the whole time since its last good look."""
    node = FakeNode()
    steal = (CPU, "mode", "steal")
    node.look("node_cpu", {steal: 10.0})
    node.look("node_cpu", {}, succeeded=False)
    node.look("node_disk", {}, succeeded=False)
    node.look("node_cpu", {steal: 12.0})

    assert node.means() == {"node_steal_cpus": pytest.approx(2 / 15)}


def test_sample_counts_once() -> None:
    """A collector that reads once in ten seconds is not read twice as if it had not grown."""
    node = FakeNode()
    waited = (WAITED, "resource", "cpu")
    node.look("node_pressure", {waited: 10.0})
    node.look()
    node.look("node_pressure", {waited: 12.0})
    node.look()

    assert node.means() == {"node_cpu_waiting_ratio": pytest.approx(0.2)}


@pytest.mark.parametrize(
    ("collector", "series", "figure"),
    [
        ("node_pressure", (WAITED, "resource", "io"), "node_io_waiting_ratio"),
        ("node_cpu", (CPU, "mode", "steal"), "node_steal_cpus"),
        ("node_cpu", "rankskew_node_cpu_throttled_seconds_total", "node_cpu_throttled_ratio"),
        ("node_memory", "rankskew_node_numa_misses_total", "node_numa_misses_per_second"),
    ],
)
def test_counters_are_told_by_the_second(
    collector: str, series: str | tuple[str, ...], figure: str
) -> None:
    """Each has its figure, and those of other resources and modes have none."""
    others: Values = {(CPU, "mode", "user"): 900.0, (WAITED, "resource", "memory"): 900.0}
    found = means_of_looks(collector, {**others, series: 10.0}, {**others, series: 12.0})

    assert found == {figure: pytest.approx(0.4)}


def test_disk_that_is_the_busiest_again_has_not_been_busy_all_the_time() -> None:
    """While another one was shown, it was busy for longer than the time of this reading."""
    looks = [disk("sda", 100.0), disk("sdb", 10.0), disk("sda", 400.0), disk("sda", 401.0)]

    assert means_of_looks("node_disk", *looks) == {"node_disk_busy_ratio": pytest.approx(0.2)}


def test_time_of_a_read_is_the_mean_of_reads() -> None:
    """Of those in the window; a disk that reads nothing has none. A level is a mean over time."""
    found = means_of_looks(
        "node_disk", disk("sda", 1.0, 10, 1.0), disk("sda", 2.0, 10, 1.0), disk("sda", 3.0, 14, 1.2)
    )
    clocks: list[Values] = [{"rankskew_node_cpu_clock_hertz": each} for each in (9.0, 2.0, 4.0)]

    assert found["node_disk_read_seconds"] == pytest.approx(0.05)
    assert "node_disk_read_seconds" not in means_of_looks("node_disk", *[disk("sda", 1.0)] * 3)
    assert means_of_looks("node_cpu_clock", *clocks) == {"node_cpu_clock_hertz": 3.0}


def test_facts_name_the_disk_and_the_mount() -> None:
    """What the figures are of is to be read in the sentence."""
    node = FakeNode()
    mount = ("rankskew_node_mount_operations_total", "export", "/data", "fstype", "nfs4")
    for _ in range(2):
        node.look("node_disk", disk("nvme0n1", 1.0))
        node.look("node_mounts", {mount: 1.0})

    assert node.readings.facts == {
        "node_disk_busy_ratio": "nvme0n1",
        "node_disk_read_seconds": "nvme0n1",
        "node_mount_operation_seconds": "/data (nfs4)",
    }


def network(**values: float) -> Values:
    """Return what two devices show: the one of the administrators is slow."""
    return {
        ("rankskew_node_network_speed_bytes_per_second", *ETH): 25e9,
        ("rankskew_node_network_speed_bytes_per_second", "device", "mgmt0"): 1e8,
        ("rankskew_node_network_transmit_bytes_total", *ETH): 1e12,
        ("rankskew_node_network_transmit_bytes_total", "device", "mgmt0"): 1e6,
        ("rankskew_node_network_transmit_bytes_total", "device", "veth0"): 1e13,
        **{(f"rankskew_node_network_{name}_total", *ETH): each for name, each in values.items()},
    }


@pytest.mark.parametrize(("speed", "link"), [(25e9, "eth0"), (1e7, "eth0"), (None, None)])
def test_link_is_that_of_the_device_that_sends_most(speed: float | None, link: str | None) -> None:
    """A device for administrators is not the network; a virtual one has no speed."""
    node = FakeNode()
    looks = {key: value for key, value in network().items() if speed or "speed" not in key[0]}
    if speed:
        looks["rankskew_node_network_speed_bytes_per_second", *ETH] = speed
    for _ in range(2):
        node.look("node_network", looks)

    assert node.means().get(LINK) == speed
    assert node.readings.facts.get(LINK) == link


def test_slowest_port_that_was_connected_is_the_link() -> None:
    """With its name, for who has to look at it."""
    rate = "rankskew_infiniband_rate_bytes_per_second"
    node = FakeNode()
    for last in (50e9, 12.5e9):
        rates = {"mlx5_0": 50e9, "mlx5_1": last, "mlx5_2": 0.0}
        looks: Values = {
            (rate, "device", name, "port", "1"): value for name, value in rates.items()
        }
        node.look("node_infiniband", looks)

    assert (node.means()[LINK], node.readings.facts[LINK]) == (12.5e9, "mlx5_1 port 1")


def test_errors_are_of_all_kinds_together_and_resent_segments_a_share() -> None:
    """Packets that are dropped on their way in or out are errors too."""
    sent, again = (f"rankskew_node_tcp_{each}_segments_total" for each in ("sent", "retransmitted"))
    found = means_of_looks(
        "node_network",
        {**network(receive_drops=1, transmit_drops=1, errors=1), sent: 5.0, again: 5.0},
        {**network(receive_drops=2, transmit_drops=3, errors=5), sent: 205.0, again: 7.0},
    )

    assert found["node_network_errors_per_second"] == pytest.approx(7 / 5)
    assert found["node_tcp_retransmitted_ratio"] == pytest.approx(0.01)


def ports(**values: float) -> Values:
    return {(f"rankskew_infiniband_{name}", *PORT): each for name, each in values.items()}


def test_errors_of_ports_count_with_those_of_devices() -> None:
    """Their time counts once."""
    node = FakeNode()
    for count in (1.0, 6.0):
        node.shown["node_infiniband"] = CollectorRun(
            (_family(ports(errors_total=count)),), True, node.now + 5.0
        )
        node.look("node_network", network(errors=count))

    assert node.means() == {"node_network_errors_per_second": pytest.approx(10 / 5)}


def test_waiting_to_send_is_a_share_of_what_is_sent() -> None:
    """By the sign that says most: ticks of waiting ports, or packets that announce congestion."""
    found = means_of_looks(
        "node_infiniband",
        ports(transmit_bytes_total=0, transmit_wait_total=0, congestion_events_total=0),
        ports(transmit_bytes_total=8e6, transmit_wait_total=4e5, congestion_events_total=10),
    )

    assert found == {"node_network_waiting_ratio": pytest.approx(0.4)}
    idle = ports(transmit_bytes_total=8e6, transmit_wait_total=4e5)
    assert means_of_looks("node_infiniband", idle, idle) == {}

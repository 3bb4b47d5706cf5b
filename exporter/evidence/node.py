"""Figures of the node, from what its collectors have read last: nothing is read twice."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from exporter.evidence.growth import Growth
from exporter.evidence.ring import Increment
from exporter.scrape.sampling import CollectorRun

# Returns the latest sample of the collector of that name; None if there is none.
Latest = Callable[[str], CollectorRun | None]

# A value and its labels, by the name of the series.
Series = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

COLLECTORS: Final = (
    "node_cpu",
    "node_cpu_clock",
    "node_pressure",
    "node_memory",
    "node_disk",
    "node_mounts",
    "node_network",
    "node_infiniband",
)
# What counts up: a figure is its growth in a second.
RATES: Final = {
    "node_cpu_waiting_ratio": ("rankskew_node_pressure_waiting_seconds_total", "cpu"),
    "node_io_waiting_ratio": ("rankskew_node_pressure_waiting_seconds_total", "io"),
    "node_steal_cpus": ("rankskew_node_cpu_seconds_total", "steal"),
    "node_cpu_throttled_ratio": ("rankskew_node_cpu_throttled_seconds_total", ""),
    "node_numa_misses_per_second": ("rankskew_node_numa_misses_total", ""),
    "node_disk_busy_ratio": ("rankskew_node_disk_busy_seconds_total", ""),
}
# The label by which their series are told apart, where there is one.
TOLD_BY: Final = ("resource", "mode")
# The growth of the first counter per growth of the second.
QUOTIENTS: Final = {
    "node_disk_read_seconds": (
        "rankskew_node_disk_read_seconds_total",
        "rankskew_node_disk_reads_total",
    ),
    "node_mount_operation_seconds": (
        "rankskew_node_mount_operation_seconds_total",
        "rankskew_node_mount_operations_total",
    ),
    "node_tcp_retransmitted_ratio": (
        "rankskew_node_tcp_retransmitted_segments_total",
        "rankskew_node_tcp_sent_segments_total",
    ),
}
NETWORK_ERRORS: Final = "node_network_errors_per_second"
DEVICE_ERRORS: Final = (
    "rankskew_node_network_receive_drops_total",
    "rankskew_node_network_transmit_drops_total",
    "rankskew_node_network_errors_total",
)
PORT_ERRORS: Final = "rankskew_infiniband_errors_total"
PORT_SENT: Final = "rankskew_infiniband_transmit_bytes_total"
PORT_RATE: Final = "rankskew_infiniband_rate_bytes_per_second"
# Bytes that one count of congestion stands for: a tick of an InfiniBand port, or ten packets.
CONGESTION: Final = {
    "rankskew_infiniband_transmit_wait_total": 8,
    "rankskew_infiniband_congestion_events_total": 40_960,
}
LINK: Final = "node_network_link_bytes_per_second"


class _Shown:
    """What a collector shows now, and how much it has *grown* since it was read before."""

    def __init__(self, sample: CollectorRun, grown: Growth) -> None:
        self.series = _series(sample)
        self._grown = grown

    def growth(self, metric: str, told: str = "") -> float | None:
        """Return by how much *metric* has grown, summed over its series; None if unknown."""
        values = {
            str(labels): value
            for labels, value in self.series.get(metric, ())
            if not told or told in [labels.get(name) for name in TOLD_BY]
        }
        grown = self._grown.of_each(f"{metric} {told}", values)
        return sum(grown.values()) if grown else None


class NodeReadings:
    """Reads the *latest* samples of the node's collectors, those that are new."""

    def __init__(self, latest: Latest) -> None:
        self._latest = latest
        self._grown = {name: Growth() for name in COLLECTORS}
        self._active: set[str] = set()
        self.facts: dict[str, str] = {}

    def read(self) -> Iterator[Increment]:
        """Yield what is new."""
        for name in COLLECTORS:
            sample = self._latest(name)
            if sample is None or not sample.succeeded:
                continue
            grown = self._grown[name]
            since = grown.of("time", sample.sampled_seconds)
            if since == 0:
                continue
            shown = _Shown(sample, grown)
            # Read the first sample as well: the next one is compared with it.
            found = list(self._read(name, shown, since or 0.0))
            if since:
                self.facts |= _facts(shown.series)
                yield from found

    def _read(self, name: str, shown: _Shown, since: float) -> Iterator[Increment]:
        for figure, (metric, told) in RATES.items():
            if (grown := shown.growth(metric, told)) is not None:
                yield Increment(figure, grown, since)
        for figure, (amount, weight) in QUOTIENTS.items():
            grown, per = shown.growth(amount), shown.growth(weight)
            if grown is not None and per:
                yield Increment(figure, grown, per)
        for _, hertz in shown.series.get("rankskew_node_cpu_clock_hertz", ()):
            yield Increment("node_cpu_clock_hertz", hertz * since, since)
        if name == "node_network":
            yield from self._devices(shown, since)
        if name == "node_infiniband":
            yield from self._ports(shown, since)

    def _devices(self, shown: _Shown, since: float) -> Iterator[Increment]:
        grown = [shown.growth(metric) for metric in DEVICE_ERRORS]
        yield Increment(NETWORK_ERRORS, sum(each or 0.0 for each in grown), since)
        ports = self._latest("node_infiniband")
        if ports is None or (ports.succeeded and not any(each.samples for each in ports.families)):
            yield from self._link(_most_used(shown.series), since)

    def _link(self, speeds: Mapping[str, float], since: float) -> Iterator[Increment]:
        """Yield the slowest of these."""
        if speeds:
            slowest = min(speeds, key=lambda device: speeds[device])
            self.facts[LINK] = slowest
            yield Increment(LINK, speeds[slowest] * since, since)

    def _ports(self, shown: _Shown, since: float) -> Iterator[Increment]:
        errors = shown.growth(PORT_ERRORS)
        if errors is not None:  # Without weight: the time counts with the network devices.
            yield Increment(NETWORK_ERRORS, errors, 0.0)
        sent = shown.growth(PORT_SENT)
        waits = [
            bytes_each * grown
            for metric, bytes_each in CONGESTION.items()
            if (grown := shown.growth(metric)) is not None
        ]
        if sent and waits:
            yield Increment("node_network_waiting_ratio", max(waits), sent)
        rates = {
            f"{labels['device']} port {labels['port']}": rate
            for labels, rate in shown.series.get(PORT_RATE, ())
        }
        # A port that was never connected is not slow; one that lost its connection is.
        self._active |= {port for port, rate in rates.items() if rate > 0}
        used = {port: rate for port, rate in rates.items() if port in self._active}
        yield from self._link(used, since)


def _most_used(series: Series) -> dict[str, float]:
    """Return the speed of the device that sends most: others are for administrators."""
    speeds = {
        labels["device"]: speed
        for labels, speed in series.get("rankskew_node_network_speed_bytes_per_second", ())
    }
    sent = {
        labels["device"]: total
        for labels, total in series.get("rankskew_node_network_transmit_bytes_total", ())
        if labels["device"] in speeds
    }
    most = max(sent, key=lambda device: sent[device], default=None)
    return {} if most is None else {most: speeds[most]}


def _series(sample: CollectorRun) -> Series:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in sample.families:
        for each in family.samples:
            found.setdefault(each.name, []).append((each.labels, each.value))
    return found


def _facts(series: Series) -> dict[str, str]:
    """Return the disk and the mount that the figures describe, as texts for people."""
    facts = {}
    for labels, _ in series.get("rankskew_node_disk_busy_seconds_total", ()):
        facts["node_disk_busy_ratio"] = facts["node_disk_read_seconds"] = labels["device"]
    for labels, _ in series.get("rankskew_node_mount_operations_total", ()):
        facts["node_mount_operation_seconds"] = f"{labels['export']} ({labels['fstype']})"
    return facts

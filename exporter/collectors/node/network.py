"""Node network: bytes, drops, errors and speed of each network device, and TCP's repeats."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts, number_in, text_of

BYTES_PER_MEGABIT: Final = 1e6 / 8


class Counts(NamedTuple):
    """What /proc/net/dev counts of a device: bytes, drops and errors, received and sent."""

    received_bytes: int
    sent_bytes: int
    received_drops: int
    sent_drops: int
    received_errors: int
    sent_errors: int


class NodeNetworkCollector:
    """Expose the network devices that have carried traffic, and how much TCP sends again.

    Devices whose full name matches *device_exclude* are left out. RDMA traffic bypasses these
    counters, and so does a pod with a network of its own, except on the node's devices.
    """

    name = "node_network"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts, device_exclude: str) -> None:
        self._procfs = mounts.procfs
        self._devices = mounts.sysfs / "class" / "net"
        self._excluded = re.compile(device_exclude)

    def collect(self) -> Iterator[Metric]:
        families, errors, speed = _families(), _errors_family(), _speed_family()
        damaged = []
        for device, counts in sorted(self._counts().items()):
            if any(counts[:2]) and not self._excluded.fullmatch(device):
                for family, count in zip(families, counts, strict=False):
                    family.add_metric([device], count)
                damaged.append(counts.received_errors + counts.sent_errors)
                megabits = number_in(self._devices / device / "speed")
                if megabits:  # A virtual device has -1 or refuses.
                    speed.add_metric([device], megabits * BYTES_PER_MEGABIT)
        if damaged:
            errors.add_metric([], sum(damaged))
        yield from (*families, errors, speed)
        yield from self._tcp()

    def _counts(self) -> dict[str, Counts]:
        """Return the counts of each device."""
        counts = {}
        text = self._text("net/dev") or (self._procfs / "net/dev").read_text()
        for line in text.splitlines()[2:]:
            device, _, columns = line.rpartition(":")  # An alias has a colon in its name.
            n = [int(count) for count in columns.split()]
            counts[device.strip()] = Counts(n[0], n[8], n[3], n[11], n[2], n[10])
        return counts

    def _tcp(self) -> Iterator[Metric]:
        sent, again = _tcp_families()
        lines = re.findall(r"^Tcp: (.*)$", self._text("net/snmp") or "", re.MULTILINE)
        if len(lines) == 2:  # Names, and the numbers below them.
            counts = dict(zip(lines[0].split(), lines[1].split(), strict=False))
            for family, name in ((sent, "OutSegs"), (again, "RetransSegs")):
                if name in counts:
                    family.add_metric([], int(counts[name]))
        yield from (sent, again)

    def _text(self, file: str) -> str | None:
        # Each process sees its own network under net/, so read that of process 1. In a container
        # this is the node's only if --path.procfs is the node's.
        return text_of(self._procfs / "1" / file) or text_of(self._procfs / file)


def _families() -> tuple[CounterMetricFamily, ...]:
    return (
        CounterMetricFamily(
            "rankskew_node_network_receive_bytes_total",
            "Bytes received by the network device, without RDMA (/proc/net/dev, read every 5 s).",
            labels=["device"],
        ),
        CounterMetricFamily(
            "rankskew_node_network_transmit_bytes_total",
            "Bytes sent by the network device, without RDMA (/proc/net/dev, read every 5 s).",
            labels=["device"],
        ),
        CounterMetricFamily(
            "rankskew_node_network_receive_drops_total",
            "Received packets that the network device dropped or missed (/proc/net/dev, read "
            "every 5 s).",
            labels=["device"],
        ),
        CounterMetricFamily(
            "rankskew_node_network_transmit_drops_total",
            "Packets that the network device dropped instead of sending (/proc/net/dev, read every "
            "5 s).",
            labels=["device"],
        ),
    )


def _errors_family() -> CounterMetricFamily:
    return CounterMetricFamily(
        "rankskew_node_network_errors_total",
        "Damaged packets that network devices received, and packets that they could not send, all "
        "devices together (errs of both directions in /proc/net/dev, read every 5 s).",
    )


def _speed_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "rankskew_node_network_speed_bytes_per_second",
        "Speed that the network device has negotiated, in each direction; absent while it has no "
        "link, and for a virtual device (/sys/class/net/*/speed, read every 5 s).",
        labels=["device"],
    )


def _tcp_families() -> tuple[CounterMetricFamily, CounterMetricFamily]:
    return (
        CounterMetricFamily(
            "rankskew_node_tcp_sent_segments_total",
            "TCP segments sent by the node, without those sent again (OutSegs in /proc/net/snmp, "
            "read every 5 s).",
        ),
        CounterMetricFamily(
            "rankskew_node_tcp_retransmitted_segments_total",
            "TCP segments that the node sent again because they were lost or late (RetransSegs in "
            "/proc/net/snmp, read every 5 s).",
        ),
    )

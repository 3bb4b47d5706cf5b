"""Node network: bytes, drops, errors and speed of each network device, and TCP's repeats."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts
from exporter.collectors.table import Row, families
from exporter.past import Sum
from rank_probe.process.small_files import number_in, text_of

BYTES_PER_MEGABIT: Final = 1_000_000 // 8


class Counts(NamedTuple):
    """What /proc/net/dev counts of a device: bytes, drops and errors, received and sent."""

    received_bytes: int
    sent_bytes: int
    received_drops: int
    sent_drops: int
    received_errors: int
    sent_errors: int


DEVICES: Final[tuple[Row[Counts], ...]] = (
    Row(
        "rankskew_node_network_receive_bytes_total",
        "Bytes received by the network device, without RDMA (/proc/net/dev, read every 5 s).",
        lambda device: device.received_bytes,
    ),
    Row(
        "rankskew_node_network_transmit_bytes_total",
        "Bytes sent by the network device, without RDMA (/proc/net/dev, read every 5 s).",
        lambda device: device.sent_bytes,
    ),
    Row(
        "rankskew_node_network_receive_drops_total",
        "Received packets that the network device dropped or missed (/proc/net/dev, read every "
        "5 s).",
        lambda device: device.received_drops,
    ),
    Row(
        "rankskew_node_network_transmit_drops_total",
        "Packets that the network device dropped instead of sending (/proc/net/dev, read every "
        "5 s).",
        lambda device: device.sent_drops,
    ),
)
ERRORS: Final[Row[int]] = Row(
    "rankskew_node_network_errors_total",
    "Damaged packets that network devices received, and packets that they could not send, all "
    "devices together (errs of both directions in /proc/net/dev, read every 5 s).",
    lambda errors: errors,
)
SPEED: Final[Row[int | None]] = Row(
    "rankskew_node_network_speed_bytes_per_second",
    "Speed that the network device has negotiated, in each direction; absent while it has no "
    "link, and for a virtual device (/sys/class/net/*/speed, read every 5 s).",
    lambda megabits: megabits or None,  # A virtual device has 0, -1, or refuses.
    times=BYTES_PER_MEGABIT,
)
TCP: Final[tuple[Row[Mapping[str, int]], ...]] = (
    Row(
        "rankskew_node_tcp_sent_segments_total",
        "TCP segments sent by the node, without those sent again (OutSegs in /proc/net/snmp, read "
        "every 5 s).",
        lambda tcp: tcp.get("OutSegs"),
    ),
    Row(
        "rankskew_node_tcp_retransmitted_segments_total",
        "TCP segments that the node sent again because they were lost or late (RetransSegs in "
        "/proc/net/snmp, read every 5 s).",
        lambda tcp: tcp.get("RetransSegs"),
    ),
)


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
        self._errors = Sum()

    def collect(self) -> Iterator[Metric]:
        devices = [
            ([device], self._own(device, counts))
            for device, counts in sorted(self._counts().items())
            if any(counts[:2]) and not self._excluded.fullmatch(device)
        ]
        errors = self._errors.add(
            {device: each.received_errors + each.sent_errors for (device,), each in devices}
        )
        speeds = [(who, number_in(self._devices / who[0] / "speed")) for who, _ in devices]
        yield from families(DEVICES, ["device"], devices)
        yield from families([ERRORS], [], [([], errors)] if devices or errors else [])
        yield from families([SPEED], ["device"], speeds)
        yield from families(TCP, [], [([], self._tcp())])

    def _own(self, device: str, counts: Counts) -> Counts:
        """Return *counts* without the drops and errors that a bond repeats of its devices."""
        if not (self._devices / device / "bonding").exists():
            return counts
        return counts._replace(received_drops=0, sent_drops=0, received_errors=0, sent_errors=0)

    def _counts(self) -> dict[str, Counts]:
        """Return the counts of each device."""
        counts = {}
        text = self._text("net/dev") or (self._procfs / "net/dev").read_text()
        for line in text.splitlines()[2:]:
            device, _, columns = line.rpartition(":")  # An alias has a colon in its name.
            n = [int(count) for count in columns.split()]
            counts[device.strip()] = Counts(n[0], n[8], n[3], n[11], n[2], n[10])
        return counts

    def _tcp(self) -> dict[str, int]:
        lines = re.findall(r"^Tcp: (.*)$", self._text("net/snmp") or "", re.MULTILINE)
        if len(lines) != 2:  # Names, and the numbers below them.
            return {}
        return dict(zip(lines[0].split(), map(int, lines[1].split()), strict=False))

    def _text(self, file: str) -> str | None:
        # Each process sees its own network under net/, so read that of process 1. In a container
        # this is the node's only if --path.procfs is the node's.
        return text_of(self._procfs / "1" / file) or text_of(self._procfs / file)

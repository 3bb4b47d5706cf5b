"""Node network: bytes and drops of each network device."""

import re
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts, text_of


class NodeNetworkCollector:
    """Expose the network devices that have carried traffic.

    Devices whose full name matches *device_exclude* are left out. RDMA traffic bypasses these
    counters.
    """

    name = "node_network"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts, device_exclude: str) -> None:
        self._procfs = mounts.procfs
        self._excluded = re.compile(device_exclude)

    def collect(self) -> Iterator[Metric]:
        families = _families()
        for device, counters in sorted(self._counters().items()):
            if any(counters[:2]) and not self._excluded.fullmatch(device):
                for family, count in zip(families, counters, strict=True):
                    family.add_metric([device], count)
        yield from families

    def _counters(self) -> dict[str, tuple[int, int, int, int]]:
        """Return received and sent bytes, received and sent drops by device."""
        # Each process sees its own network under net/, so read that of process 1. In a container
        # this is the node's only if --path.procfs is the node's.
        text = text_of(self._procfs / "1/net/dev") or (self._procfs / "net/dev").read_text()
        counters = {}
        for line in text.splitlines()[2:]:
            device, _, columns = line.rpartition(":")  # An alias has a colon in its name.
            counts = [int(count) for count in columns.split()]
            counters[device.strip()] = (counts[0], counts[8], counts[3], counts[11])
        return counters


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

"""Node network: bytes through each network device."""

import re
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric


class NodeNetworkCollector:
    """Expose bytes per network device, without those whose whole name *device_exclude* matches.

    RDMA traffic bypasses these counters.
    """

    name = "node_network"
    interval_seconds = 1.0

    def __init__(self, device_exclude: str) -> None:
        self._excluded = re.compile(device_exclude)

    def collect(self) -> Iterator[Metric]:
        received = CounterMetricFamily(
            "rankskew_node_network_receive_bytes_total",
            "Bytes received by the network device (/proc/net/dev, read every second).",
            labels=["device"],
        )
        transmitted = CounterMetricFamily(
            "rankskew_node_network_transmit_bytes_total",
            "Bytes sent by the network device (/proc/net/dev, read every second).",
            labels=["device"],
        )
        for device, counters in sorted(psutil.net_io_counters(pernic=True, nowrap=False).items()):
            if not self._excluded.fullmatch(device):
                received.add_metric([device], counters.bytes_recv)
                transmitted.add_metric([device], counters.bytes_sent)
        yield from (received, transmitted)

"""Node disk: bytes from and to each block device."""

import re
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.base import NotAvailable


class NodeDiskCollector:
    """Expose bytes per block device, without those whose whole name *device_exclude* matches."""

    name = "node_disk"
    interval_seconds = 1.0

    def __init__(self, device_exclude: str) -> None:
        self._excluded = re.compile(device_exclude)
        try:
            psutil.disk_io_counters(perdisk=True, nowrap=False)
        except NotImplementedError as error:
            raise NotAvailable("this node shows no /proc/diskstats") from error

    def collect(self) -> Iterator[Metric]:
        read = CounterMetricFamily(
            "rankskew_node_disk_read_bytes_total",
            "Bytes read from the block device (/proc/diskstats, read every second).",
            labels=["device"],
        )
        written = CounterMetricFamily(
            "rankskew_node_disk_written_bytes_total",
            "Bytes written to the block device (/proc/diskstats, read every second).",
            labels=["device"],
        )
        for device, counters in sorted(psutil.disk_io_counters(perdisk=True, nowrap=False).items()):
            if not self._excluded.fullmatch(device):
                read.add_metric([device], counters.read_bytes)
                written.add_metric([device], counters.write_bytes)
        yield from (read, written)

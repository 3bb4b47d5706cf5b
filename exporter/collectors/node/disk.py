"""Node disk: bytes read from and written to the node's disks, all together."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.files import Mounts

# One path to a multi-port NVMe disk: nvme0c1n1 leads to nvme0n1.
NVME_PATH: Final = re.compile(r"(nvme\d+)c\d+(n\d+)")


class Bytes(NamedTuple):
    """The bytes read from and written to a disk."""

    read: int
    written: int


class NodeDiskCollector:
    """Expose the bytes of the physical disks, summed over the node.

    Only disks with hardware behind them count, so that no byte counts twice: partitions, RAID,
    volumes and loop devices pass their bytes on to a disk. A series per disk would make up a sixth
    of the node's series for ten disks, so this exposes the sum; node_exporter has each disk. Disks
    whose full name matches *device_exclude* are left out.
    """

    name = "node_disk"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts, device_exclude: str) -> None:
        self._folder = mounts.sysfs / "block"
        self._excluded = re.compile(device_exclude)
        self._last: dict[str, Bytes] = {}
        self._total = Bytes(0, 0)
        if not ((mounts.procfs / "diskstats").exists() and self._folder.exists()):
            raise NotAvailable("this node shows no diskstats in /proc or no block in /sys")

    def collect(self) -> Iterator[Metric]:
        for disk, now in self._disks().items():
            last = self._last.get(disk, Bytes(0, 0))
            self._total = Bytes(
                self._total.read + _increase(last.read, now.read),
                self._total.written + _increase(last.written, now.written),
            )
            self._last[disk] = now
        yield CounterMetricFamily(
            "rankskew_node_disk_read_bytes_total",
            "Bytes read from the node's physical disks (/proc/diskstats, read every 5 s).",
            value=self._total.read,
        )
        yield CounterMetricFamily(
            "rankskew_node_disk_written_bytes_total",
            "Bytes written to the node's physical disks (/proc/diskstats, read every 5 s).",
            value=self._total.written,
        )

    def _disks(self) -> dict[str, Bytes]:
        """Return the bytes of each disk; those of an NVMe disk's paths count for the disk."""
        disks: dict[str, Bytes] = {}
        paths: dict[str, Bytes] = {}
        for device, count in self._devices():
            path = NVME_PATH.fullmatch(device)
            if path is None:
                disks[device] = count
            else:
                disk = path[1] + path[2]
                known = paths.get(disk, Bytes(0, 0))
                paths[disk] = Bytes(known.read + count.read, known.written + count.written)
        # Older kernels count only on the paths, newer ones on the disk too.
        for disk, count in paths.items():
            known = disks.get(disk, Bytes(0, 0))
            disks[disk] = Bytes(max(known.read, count.read), max(known.written, count.written))
        return disks

    def _devices(self) -> Iterator[tuple[str, Bytes]]:
        # nowrap=True does not suit _increase: it forgets a disk that disappears.
        for device, count in psutil.disk_io_counters(perdisk=True, nowrap=False).items():
            if self._is_physical(device) and not self._excluded.fullmatch(device):
                yield device, Bytes(count.read_bytes, count.write_bytes)

    def _is_physical(self, device: str) -> bool:
        return (self._folder / device.replace("/", "!") / "device").exists()


def _increase(last: int, now: int) -> int:
    """Return the bytes since *last*; a disk that comes back starts from 0.

    The sum of *now* alone would fall when a disk disappears, which looks like a reset of all disks.
    """
    return now - last if now >= last else now

"""Node disk: bytes of the node's disks, all together, and how busy and slow the busiest one is."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.busiest import Busiest
from exporter.collectors.node.files import Mounts
from exporter.collectors.table import MILLI, Row, families
from exporter.past import Sum

# One path to a multi-port NVMe disk: nvme0c1n1 leads to nvme0n1.
NVME_PATH: Final = re.compile(r"(nvme\d+)c\d+(n\d+)")


class DiskUse(NamedTuple):
    """What a disk has done: bytes, reads, and milliseconds in which it read or was busy."""

    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    read_milliseconds: int = 0
    busy_milliseconds: int = 0


BUSIEST: Final[tuple[Row[DiskUse], ...]] = (
    Row(
        "rankskew_node_disk_busy_seconds_total",
        "Time in which the disk had at least one operation in progress, in seconds; of the disk "
        "that has been the busiest of late (/proc/diskstats, read every 5 s).",
        lambda disk: disk.busy_milliseconds,
        over=MILLI,
    ),
    Row(
        "rankskew_node_disk_reads_total",
        "Reads that the disk has completed; of the busiest disk (/proc/diskstats, read every 5 s).",
        lambda disk: disk.reads,
    ),
    Row(
        "rankskew_node_disk_read_seconds_total",
        "Time that the disk's reads took, waiting included, in seconds summed over reads; of the "
        "busiest disk (/proc/diskstats, read every 5 s).",
        lambda disk: disk.read_milliseconds,
        over=MILLI,
    ),
)


class NodeDiskCollector:
    """Expose the bytes of the physical disks, summed over the node, and the busiest disk.

    Only disks with hardware behind them count, so that no byte counts twice: partitions, RAID,
    volumes and loop devices pass their bytes on to a disk. One slow disk disappears in the sum, but
    the series of ten would be a quarter of the node's. A slow one is busier than its neighbours, so
    only the busiest has its own; node_exporter has all. Disks whose full name matches
    *device_exclude* are left out.
    """

    name = "node_disk"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts, device_exclude: str) -> None:
        self._statistics, self._folder = mounts.procfs / "diskstats", mounts.sysfs / "block"
        self._excluded = re.compile(device_exclude)
        self._read, self._written = Sum(), Sum()
        self._busiest = Busiest()

    def collect(self) -> Iterator[Metric]:
        if not (self._statistics.exists() and self._folder.exists()):
            return  # A sandbox hides either.
        disks = self._disks()
        yield CounterMetricFamily(
            "rankskew_node_disk_read_bytes_total",
            "Bytes read from the node's physical disks (/proc/diskstats, read every 5 s).",
            value=self._read.add({name: use.read_bytes for name, use in disks.items()}),
        )
        yield CounterMetricFamily(
            "rankskew_node_disk_written_bytes_total",
            "Bytes written to the node's physical disks (/proc/diskstats, read every 5 s).",
            value=self._written.add({name: use.written_bytes for name, use in disks.items()}),
        )
        busiest = self._busiest.of({name: use.busy_milliseconds for name, use in disks.items()})
        yield from families(
            BUSIEST, ["device"], [] if busiest is None else [([busiest], disks[busiest])]
        )

    def _disks(self) -> dict[str, DiskUse]:
        """Return what each disk has done; what an NVMe disk's paths did counts for the disk."""
        disks: dict[str, DiskUse] = {}
        paths: dict[str, list[DiskUse]] = {}
        for device, use in self._devices():
            path = NVME_PATH.fullmatch(device)
            if path is None:
                disks[device] = use
            else:
                paths.setdefault(path[1] + path[2], []).append(use)
        # Older kernels count only on the paths, newer ones on the disk too.
        for disk, uses in paths.items():
            disks[disk] = DiskUse(
                *map(max, disks.get(disk, DiskUse()), map(sum, zip(*uses, strict=True)))
            )
        return disks

    def _devices(self) -> Iterator[tuple[str, DiskUse]]:
        # nowrap=True does not suit Sum: it forgets a disk that disappears.
        for device, c in psutil.disk_io_counters(perdisk=True, nowrap=False).items():
            if self._is_physical(device) and not self._excluded.fullmatch(device):
                use = DiskUse(c.read_bytes, c.write_bytes, c.read_count, c.read_time, c.busy_time)
                yield device, use

    def _is_physical(self, device: str) -> bool:
        return (self._folder / device.replace("/", "!") / "device").exists()

"""Disk bytes are exposed for each block device that is not left out."""

from typing import NamedTuple

import psutil
import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node_disk import NodeDiskCollector
from exporter.settings import Settings
from tests.exporter.collectors.expose import expose, series


class Counters(NamedTuple):
    """The two of psutil's counters that are read."""

    read_bytes: int
    write_bytes: int


def with_devices(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    counters = {device: Counters(read_bytes=10, write_bytes=20) for device in devices}
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: counters)


def test_node_without_disk_statistics_turns_collector_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that hides /proc/diskstats means that the collector does not start."""

    def hidden(**_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(psutil, "disk_io_counters", hidden)
    with pytest.raises(NotAvailable, match="/proc/diskstats"):
        NodeDiskCollector("")


def test_bytes_are_exposed_by_device_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and written bytes are two metrics, as Prometheus asks."""
    with_devices(monkeypatch, "nvme0n1")

    assert series(expose(NodeDiskCollector(""))) == [
        'rankskew_node_disk_read_bytes_total{device="nvme0n1"} 10.0',
        'rankskew_node_disk_written_bytes_total{device="nvme0n1"} 20.0',
    ]


def test_default_leaves_out_partitions_and_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition's bytes are its disk's; whole disks, RAID and volumes all stay."""
    parts = ["loop0", "nvme0n1p1", "sda1", "vda2", "xvda1", "mmcblk0p1", "ram0", "sr0", "zram0"]
    whole = ["dm-0", "md127", "mmcblk0", "nvme0n1", "nvme10n1", "sda", "vda"]
    with_devices(monkeypatch, *parts, *whole)
    page = expose(NodeDiskCollector(Settings().node_disk_device_exclude))

    assert [line.split('"')[1] for line in series(page) if "_read_" in line] == whole

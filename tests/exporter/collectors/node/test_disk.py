"""Disk bytes are exposed as the node's sum, and how busy the busiest disk is, by disk."""

import re
from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.disk import NodeDiskCollector
from exporter.collectors.node.files import Mounts
from exporter.settings import Settings
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import HOST, add_disk, copy_of_host, mounted

EXCLUDED = Settings().node_disk_device_exclude
# Sectors of the fixture's disks: nvme0n1, nvme1n1 by its path, and sda.
READ = 512 * (1000 + 3000 + 50)
WRITTEN = 512 * (400 + 600 + 10)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """A node that a test may change; psutil reads its /proc."""
    return mounted(copy_of_host(tmp_path / "host"), monkeypatch)


def total(collector: NodeDiskCollector) -> list[float]:
    """Return the read and the written bytes of the page."""
    return [float(line.split()[-1]) for line in shown(collector) if "_bytes_" in line]


def by_disk(collector: NodeDiskCollector) -> dict[str, float]:
    """Return what the page says of single disks: "busy_seconds nvme0n1" and the like."""
    found = re.findall(r'disk_(\w+)_total\{device="(\w+)"\} (\S+)', expose(collector))
    return {f"{name} {disk}": float(value) for name, disk, value in found}


def set_disk(
    host: Mounts, disk: str, reads: int, read_milliseconds: int, busy_milliseconds: int
) -> None:
    """Change what a disk has done; the columns are those of Linux' iostats.rst."""
    lines = []
    for line in (host.procfs / "diskstats").read_text().splitlines():
        columns = line.split()
        if columns[2] == disk:
            columns[3], columns[6] = str(reads), str(read_milliseconds)
            columns[12] = str(busy_milliseconds)
        lines.append(" ".join(columns))
    (host.procfs / "diskstats").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("missing", ["procfs", "sysfs"])
def test_node_without_disk_statistics_turns_collector_off(missing: str, tmp_path: Path) -> None:
    """A sandbox that hides either file system means that the collector does not start."""
    with pytest.raises(NotAvailable, match="diskstats"):
        NodeDiskCollector(HOST._replace(**{missing: tmp_path}), "")


@pytest.mark.parametrize(
    ("exclude", "read", "written"),
    [
        # Partitions, RAID, volumes, loop devices and optical drives add nothing to it.
        (EXCLUDED, READ, WRITTEN),
        # The flag takes whole names.
        (r"sda|sr\d+|nvme1", READ - 512 * 50, WRITTEN - 512 * 10),
    ],
)
def test_bytes_are_summed_over_the_physical_disks(
    host: Mounts, exclude: str, read: float, written: float
) -> None:
    assert total(NodeDiskCollector(host, exclude)) == [read, written]


def test_busiest_disk_has_series_of_its_own(host: Mounts) -> None:
    """A slow disk of an array is busier than its neighbours, whatever they did before."""
    collector = NodeDiskCollector(host, EXCLUDED)
    assert "busy_seconds sda" not in by_disk(collector)
    set_disk(host, "sda", reads=200, read_milliseconds=5_000, busy_milliseconds=4_000)

    assert by_disk(collector) == {
        "busy_seconds sda": 4.0,
        "reads sda": 200,
        "read_seconds sda": 5.0,
    }


# Older kernels count at the paths only, newer ones at the disk as well.
@pytest.mark.parametrize("counted_by_disk", [0, 5000])
def test_nvme_disk_of_several_paths_counts_once(counted_by_disk: int, host: Mounts) -> None:
    """Bytes, and how busy it is."""
    add_disk(host, "nvme5n1", counted_by_disk)
    for path, sectors in (("nvme5c1n1", 2000), ("nvme5c2n1", 3000)):
        add_disk(host, path, sectors)
        set_disk(host, path, reads=50, read_milliseconds=700, busy_milliseconds=500)
    collector = NodeDiskCollector(host, EXCLUDED)

    assert total(collector) == [READ + 512 * 5000, WRITTEN + 512 * 5000]
    assert by_disk(collector) == {
        "busy_seconds nvme5n1": 1.0,
        "reads nvme5n1": 100,
        "read_seconds nvme5n1": 1.4,
    }


def test_disk_that_goes_and_comes_back_does_not_move_the_sum_back(host: Mounts) -> None:
    """A falling sum would look like a reset of all disks, and show bytes that nobody read."""
    without = (host.procfs / "diskstats").read_text()
    add_disk(host, "sdb", 100)
    collector = NodeDiskCollector(host, EXCLUDED)
    sums = [total(collector)[0]]
    (host.procfs / "diskstats").write_text(without)
    sums.append(total(collector)[0])
    add_disk(host, "sdb", 1)
    sums.append(total(collector)[0])

    assert sums == [READ + 512 * 100, READ + 512 * 100, READ + 512 * 101]

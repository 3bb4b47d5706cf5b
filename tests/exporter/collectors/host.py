"""A node's /proc and /sys as files: two sockets, NVMe disks, Ethernet and InfiniBand."""

import shutil
from pathlib import Path
from typing import Final

import psutil
import pytest

from exporter.collectors.node.files import Mounts

FIXTURES: Final = Path(__file__).parents[2] / "fixtures"
HOST: Final = Mounts(FIXTURES / "proc", FIXTURES / "sys")
INFINIBAND: Final = Path("class/infiniband")


def copy_of_host(folder: Path) -> Mounts:
    """Return a copy of the node in *folder* that a test may change."""
    return Mounts(
        shutil.copytree(HOST.procfs, folder / "proc"), shutil.copytree(HOST.sysfs, folder / "sys")
    )


def mounted(host: Mounts, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """Return *host*, with psutil reading its /proc, as with --path.procfs."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(host.procfs))
    return host


def write(path: Path, text: str) -> None:
    """Write *text* to *path* and make the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def unreadable(file: Path) -> None:
    """Make *file* one that is there and raises OSError when read."""
    file.unlink()
    file.mkdir()


def add_disk(host: Mounts, name: str, sectors: int) -> None:
    """Give the node a physical disk that has read and written *sectors*."""
    write(host.sysfs / "block" / name / "device" / "model", "Disk")
    with (host.procfs / "diskstats").open("a") as file:
        file.write(f" 259 99 {name} 1 0 {sectors} 1 1 0 {sectors} 1 0 1 1\n")


def large_host(folder: Path) -> Mounts:
    """Return a node like a DGX: ten disks, eight InfiniBand ports that are up, a busy CPU."""
    host = copy_of_host(folder)
    stat = host.procfs / "stat"
    stat.write_text(stat.read_text().replace("cpu0 3000", "cpu0 90000"))
    shutil.rmtree(host.sysfs / INFINIBAND)
    for number in range(8):
        shutil.copytree(
            HOST.sysfs / INFINIBAND / "mlx5_0", host.sysfs / INFINIBAND / f"mlx5_{number}"
        )
    for number in range(2, 9):
        add_disk(host, f"nvme{number}n1", 1000)
    return host

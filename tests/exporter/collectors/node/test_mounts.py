"""NFS and Lustre are exposed by export, with the time that their operations took."""

from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.mounts import NodeMountsCollector
from tests.exporter.collectors.expose import shown
from tests.exporter.collectors.host import copy_of_host, write

LLITE = "fs/lustre/llite/scratch-ffff8f0c1e2d3000/stats"


@pytest.fixture
def host(tmp_path: Path) -> Mounts:
    """A node that a test may change."""
    return copy_of_host(tmp_path)


def busiest(host: Mounts) -> list[str]:
    return shown(NodeMountsCollector(host))


def used(export: str, operations: float, seconds: float, fstype: str = "nfs") -> list[str]:
    """Return the series of an export."""
    labels = f'{{export="{export}",fstype="{fstype}"}}'
    return [
        f"rankskew_node_mount_operations_total{labels} {operations}",
        f"rankskew_node_mount_operation_seconds_total{labels} {seconds}",
    ]


DATA = used("10.0.0.5:/data", 1500.0, 2.88)


def test_node_without_such_mounts_turns_collector_off(tmp_path: Path) -> None:
    """Local file systems are no reason to read mountstats."""
    write(tmp_path / "1/mountstats", "device /dev/sda1 mounted on / with fstype ext4\n")

    with pytest.raises(NotAvailable, match="neither NFS"):
        NodeMountsCollector(Mounts(tmp_path, tmp_path))


def test_export_that_is_slow_now_is_the_one_that_is_shown(host: Mounts) -> None:
    """All operations count, the queue does not; two mounts of an export count once."""
    collector = NodeMountsCollector(host)
    assert shown(collector) == DATA
    lustre = host.procfs / LLITE
    lustre.write_text(lustre.read_text().replace("1600000 ", "3600000 "))

    assert shown(collector) == used("scratch", 500.0, 3.7, "lustre")


def test_mountstats_as_published_are_read(host: Mounts) -> None:
    """Lines of an NFS 4.1 client with Linux 4: 2.6 s of each write were spent in its queue."""
    operations = (
        ("NULL", "0 0 0 0 0 0 0 0"),
        ("READ", "1000 1000 0 220000 1048680000 1689 503927 505677"),
        ("WRITE", "2000 2000 0 2097616000 288000 5178088 48850 5230077"),
        ("OPEN_NOATTR", "1 1 0 272 316 0 18 18"),
    )
    lines = "".join(f"{name:>16}: {counts}\n" for name, counts in operations)
    header = "device xx:/ mounted on /mnt with fstype nfs4 statvers=1.1\n\tper-op statistics\n"
    write(host.procfs / "1/mountstats", header + lines)

    assert busiest(host) == used("xx:/", 3001.0, 552.795)


def test_mount_of_an_older_kernel_is_read(host: Mounts) -> None:
    """Before Linux 5.3 operations have no column of errors."""
    (host.procfs / LLITE).unlink()
    stats = host.procfs / "1/mountstats"
    stats.write_text("device " + stats.read_text().rpartition("device ")[2])

    assert busiest(host) == used("home:/home", 100.0, 0.19)


def test_lustre_that_does_not_time_operations_has_no_series(host: Mounts) -> None:
    """Before Lustre 2.13 there are counts only, from which nothing can be concluded."""
    write(host.procfs / LLITE, "open  5 samples [regs]\nread_bytes  1 samples [bytes] 1 2 3\n")
    (host.procfs / "1/mountstats").unlink()

    with pytest.raises(NotAvailable):
        busiest(host)


def test_lustre_is_found_in_debugfs_too(host: Mounts) -> None:
    """Its statistics have moved from /proc to /sys/kernel/debug."""
    (host.procfs / "1/mountstats").unlink()
    moved = host.procfs / LLITE
    write(host.sysfs / LLITE.replace("fs", "kernel/debug", 1), moved.read_text())
    moved.unlink()

    assert busiest(host) == used("scratch", 500.0, 1.7, "lustre")


def test_mounts_of_the_exporter_are_read_without_rights(host: Mounts) -> None:
    """Only root reads those of process 1."""
    write(host.procfs / "self/mountstats", (host.procfs / "1/mountstats").read_text())
    (host.procfs / "1/mountstats").unlink()

    assert busiest(host) == DATA


def test_lines_that_are_not_understood_are_left_out(host: Mounts) -> None:
    """A kernel that writes something else costs readings, not the collector."""
    (host.procfs / LLITE).unlink()
    stats = host.procfs / "1/mountstats"
    stats.write_text(stats.read_text().replace("READ: 1000", "READ: many"))

    assert busiest(host)[0] == used("10.0.0.5:/data", 500.0, 0)[0]

"""Memory is exposed in bytes, for the node and for each of its NUMA nodes."""

from pathlib import Path

import pytest

from exporter.collectors.node.files import Mounts, bytes_by_name
from exporter.collectors.node.memory import NodeMemoryCollector
from tests.exporter.collectors.expose import shown
from tests.exporter.collectors.host import HOST, copy_of_host, mounted, write

SHOWN = [
    "rankskew_node_memory_total_bytes 4.096e+09",
    "rankskew_node_memory_available_bytes 2.56e+09",
    'rankskew_node_numa_memory_free_bytes{numa_node="0"} 2.048e+08',
    'rankskew_node_numa_memory_free_bytes{numa_node="1"} 1.024e+08',
    "rankskew_node_numa_misses_total 128.0",
    "rankskew_node_oom_kills_total 3.0",
]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    """The node whose /proc psutil reads here."""
    return mounted(HOST, monkeypatch)


def test_memory_of_node_and_numa_nodes_is_exposed_in_bytes(host: Mounts, tmp_path: Path) -> None:
    """A NUMA node's page cache is not free. Misses of all are one number.

    If the kernel shows no NUMA nodes, there are no series for them.
    """
    assert shown(NodeMemoryCollector(host)) == SHOWN
    without = NodeMemoryCollector(host._replace(sysfs=tmp_path))
    assert shown(without) == [line for line in SHOWN if "numa" not in line]


def test_numa_node_without_memory_costs_no_series(tmp_path: Path) -> None:
    """A node with only CPUs, or with an unreadable file, does not hide its neighbours."""
    host = copy_of_host(tmp_path)
    nodes = host.sysfs / "devices/system/node"
    write(nodes / "node2/meminfo", "Node 2 MemTotal:       0 kB\nNode 2 MemFree:       0 kB\n")
    write(nodes / "node3/cpulist", "\n")

    assert shown(NodeMemoryCollector(host)) == SHOWN


def test_kernel_that_does_not_count_them_has_no_series(tmp_path: Path) -> None:
    """Before Linux 4.13 kills are not counted; 0 would mean that there was none."""
    host = copy_of_host(tmp_path)
    write(host.procfs / "vmstat", "nr_free_pages 1\npgoom_kill 5\n")
    for number in (0, 1):
        (host.sysfs / f"devices/system/node/node{number}/numastat").unlink()

    assert shown(NodeMemoryCollector(host)) == SHOWN[:-2]


def test_memory_of_this_node_is_exposed_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Total memory is the node's, and some of it, not more than all, is available."""
    this = mounted(Mounts(Path("/proc"), Path("/sys")), monkeypatch)
    total, available = (float(line.split()[1]) for line in shown(NodeMemoryCollector(this))[:2])

    assert total == bytes_by_name(Path("/proc/meminfo").read_text())["MemTotal"]
    assert 0 < available <= total

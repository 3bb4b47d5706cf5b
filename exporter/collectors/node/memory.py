"""Node memory: what there is, on each NUMA node too, and what happens when it runs out."""

import re
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts, bytes_by_name, numa_nodes
from rank_probe.process.small_files import text_of


class NodeMemoryCollector:
    """Expose the memory of the node and of each NUMA node, pages misplaced and processes killed."""

    name = "node_memory"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts

    def collect(self) -> Iterator[Metric]:
        memory = psutil.virtual_memory()
        yield GaugeMetricFamily(
            "rankskew_node_memory_total_bytes",
            "Memory of the node, in bytes (/proc/meminfo, read every 5 s).",
            value=memory.total,
        )
        yield GaugeMetricFamily(
            "rankskew_node_memory_available_bytes",
            "Memory that programs can take without swapping, in bytes (MemAvailable of "
            "/proc/meminfo, read every 5 s).",
            value=memory.available,
        )
        yield from self._numa_families()
        yield from self._short_families()

    def _short_families(self) -> Iterator[Metric]:
        misses = CounterMetricFamily(
            "rankskew_node_numa_misses_total",
            "Pages that were allocated on another NUMA node than was wanted, because that had "
            "none free (numa_miss in /sys, all NUMA nodes, read every 5 s).",
        )
        found = [
            re.search(r"^numa_miss (\d+)$", text_of(folder / "numastat") or "", re.MULTILINE)
            for folder in numa_nodes(self._mounts.sysfs).values()
        ]
        if any(found):
            misses.add_metric([], sum(int(count[1]) for count in found if count))
        kills = CounterMetricFamily(
            "rankskew_node_oom_kills_total",
            "Processes that the kernel has killed because the node or their cgroup had no memory "
            "left (oom_kill in /proc/vmstat, Linux 4.13, read every 5 s).",
        )
        vmstat = text_of(self._mounts.procfs / "vmstat") or ""
        killed = re.search(r"^oom_kill (\d+)$", vmstat, re.MULTILINE)
        if killed:
            kills.add_metric([], int(killed[1]))
        yield from (misses, kills)

    def _numa_families(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "rankskew_node_numa_memory_free_bytes",
            "Free memory of the NUMA node, in bytes (MemFree of its meminfo in /sys, read every "
            "5 s). Page cache does not count as free: the kernel can reclaim it, but first takes "
            "memory from another NUMA node (vm.zone_reclaim_mode 0, the default). A GPU whose "
            "memory the kernel manages is a NUMA node of its own.",
            labels=["numa_node"],
        )
        for numa_node, folder in numa_nodes(self._mounts.sysfs).items():
            memory = bytes_by_name(text_of(folder / "meminfo") or "")
            if memory.get("MemTotal"):  # A node may have only CPUs.
                free.add_metric([numa_node], memory["MemFree"])
        yield free

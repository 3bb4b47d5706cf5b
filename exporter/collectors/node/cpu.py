"""Node CPU: how the CPUs of each NUMA node spend their time."""

import os
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts, numa_nodes
from rank_probe.process.small_files import cpu_list, text_of

MODES: Final = ("user", "system", "idle", "iowait", "irq", "steal")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# A CPU's idle and iowait decrease a little now and then (proc(5)); a larger decrease is a reset.
JITTER_TICKS: Final = 3 * TICKS_PER_SECOND


class NodeCpuCollector:
    """Expose CPU time by mode, summed over the CPUs of each NUMA node."""

    name = "node_cpu"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        # The sum keeps the time of a CPU that went offline; without it, the sum would seem to
        # reset.
        self._ticks: dict[int, list[int]] = {}
        self._numa_node: dict[int, str] = {}

    def collect(self) -> Iterator[Metric]:
        cpu = CounterMetricFamily(
            "rankskew_node_cpu_seconds_total",
            "CPU time by mode, in seconds summed over the CPUs of the NUMA node (/proc/stat, read "
            "every 5 s). nice counts as user, softirq as irq; a machine without NUMA is node 0.",
            labels=["mode", "numa_node"],
        )
        self._read_stat()
        self._read_numa_nodes()
        for numa_node, sums in sorted(self._sums().items()):
            for mode, ticks in zip(MODES, sums, strict=True):
                cpu.add_metric([mode, numa_node], ticks / TICKS_PER_SECOND)
        yield cpu

    def _read_stat(self) -> None:
        # Not psutil: it does not say which CPU is which, so the NUMA node would be unknown.
        with (self._mounts.procfs / "stat").open() as file:
            for line in takewhile(lambda line: line.startswith("cpu"), file):
                name, *columns = line.split()
                if name != "cpu":  # That line is the sum of the others.
                    self._take(int(name.removeprefix("cpu")), _by_mode(columns))

    def _take(self, cpu: int, ticks: list[int]) -> None:
        last = self._ticks.get(cpu, ticks)
        self._ticks[cpu] = [
            before if before - JITTER_TICKS <= now < before else now
            for before, now in zip(last, ticks, strict=True)
        ]

    def _read_numa_nodes(self) -> None:
        for numa_node, folder in numa_nodes(self._mounts.sysfs).items():
            for cpu in cpu_list(text_of(folder / "cpulist") or ""):
                self._numa_node[cpu] = numa_node

    def _sums(self) -> dict[str, list[int]]:
        by_node: dict[str, list[list[int]]] = {}
        for cpu, ticks in self._ticks.items():
            by_node.setdefault(self._numa_node.get(cpu, "0"), []).append(ticks)
        return {
            node: [sum(mode) for mode in zip(*cpus, strict=True)] for node, cpus in by_node.items()
        }


def _by_mode(columns: list[str]) -> list[int]:
    """Return the ticks of MODES. The columns after steal are guest time, which user includes."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, columns[:8])
    return [user + nice, system, idle, iowait, irq + softirq, steal]

"""Node CPU: how the CPUs of each NUMA node spend their time, their clock, and what throttles it."""

import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts, numa_nodes
from rank_probe.process.small_files import cpu_list, names_in, number_in, text_of

MODES: Final = ("user", "system", "idle", "iowait", "irq", "steal")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# A CPU's idle and iowait decrease a little now and then (proc(5)); a larger decrease is a reset.
JITTER_TICKS: Final = 3 * TICKS_PER_SECOND
# An idle CPU lowers its clock, which slows nobody: only these are read. Older kernels interrupt a
# CPU to read its clock and wait for 20 ms.
MOST_CPUS: Final = 16
BUSY_SHARE: Final = 0.2
HERTZ_PER_KILOHERTZ: Final = 1_000
MILLISECONDS: Final = 1_000


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
        for name, columns in _cpus(self._mounts.procfs / "stat"):
            self._take(int(name.removeprefix("cpu")), _by_mode(columns))
        self._read_numa_nodes()
        for numa_node, sums in sorted(self._sums().items()):
            for mode, ticks in zip(MODES, sums, strict=True):
                cpu.add_metric([mode, numa_node], ticks / TICKS_PER_SECOND)
        yield cpu

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


def _by_mode(columns: list[int]) -> list[int]:
    """Return the ticks of MODES."""
    user, nice, system, idle, iowait, irq, softirq, steal = columns
    return [user + nice, system, idle, iowait, irq + softirq, steal]


class NodeCpuClockCollector:
    """Expose the mean clock of the CPUs that have been busiest since the last look."""

    name = "node_cpu_clock"
    interval_seconds = 15.0

    def __init__(self, mounts: Mounts) -> None:
        self._stat = mounts.procfs / "stat"
        self._folder = mounts.sysfs / "devices" / "system" / "cpu"
        # Of each CPU, its busy and its total time, in ticks.
        self._last: dict[str, tuple[int, int]] = {}

    def collect(self) -> Iterator[Metric]:
        clock = GaugeMetricFamily(
            "rankskew_node_cpu_clock_hertz",
            "Mean clock of the up to 16 busiest CPUs, in hertz; absent while none is busy for a "
            "fifth of the time (scaling_cur_freq in /sys, read every 15 s).",
        )
        throttled = CounterMetricFamily(
            "rankskew_node_cpu_throttled_seconds_total",
            "Time for which heat throttled the CPU package that it throttled most, in seconds, "
            "counted when it ends (package_throttle_total_time_ms in /sys, Intel only, read every "
            "15 s).",
        )
        seconds = self._throttled_seconds()
        if self._clock("cpu0") is None and seconds is None:
            return  # A virtual machine shows neither.
        hertz = [found for cpu in self._busy() if (found := self._clock(cpu)) is not None]
        if hertz:
            clock.add_metric([], sum(hertz) / len(hertz))
        if seconds is not None:
            throttled.add_metric([], seconds)
        yield from (clock, throttled)

    def _clock(self, cpu: str) -> int | None:
        """Return the clock of *cpu*, such as "cpu7", in hertz."""
        kilohertz = number_in(self._folder / cpu / "cpufreq" / "scaling_cur_freq")
        return None if kilohertz is None else kilohertz * HERTZ_PER_KILOHERTZ

    def _busy(self) -> list[str]:
        """Return the CPUs that have been busiest since the last look, or since the start."""
        # A CPU is busy while it is neither idle nor in iowait.
        now = {cpu: (sum(each) - each[3] - each[4], sum(each)) for cpu, each in _cpus(self._stat)}
        shares = {}
        for cpu, (busy, total) in now.items():
            busy_before, total_before = self._last.get(cpu, (0, 0))
            if total > total_before:
                shares[cpu] = (busy - busy_before) / (total - total_before)
        self._last = now
        busiest = sorted(shares, key=lambda cpu: -shares[cpu])[:MOST_CPUS]
        return [cpu for cpu in busiest if shares[cpu] >= BUSY_SHARE]

    def _throttled_seconds(self) -> float | None:
        """Return the most that any CPU counts for its package; all of a package count the same."""
        found = (
            number_in(self._folder / cpu / "thermal_throttle" / "package_throttle_total_time_ms")
            for cpu in names_in(self._folder)
        )
        most = max((total for total in found if total is not None), default=None)
        return None if most is None else most / MILLISECONDS


def _cpus(stat: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each CPU, and its ticks in the columns from user to steal.

    The columns after these are guest time, which user includes. Not from psutil: it does not say
    which CPU is which, so the NUMA node would be unknown.
    """
    with stat.open() as file:
        for line in takewhile(lambda line: line.startswith("cpu"), file):
            name, *columns = line.split()
            if name != "cpu":  # That line is the sum of the others.
                yield name, [int(column) for column in columns[:8]]

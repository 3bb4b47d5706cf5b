"""Node CPU clock: how fast the busy CPUs run, and for how long heat throttled them."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts
from rank_probe.process.small_files import names_in, number_in

# An idle CPU lowers its clock, which slows nobody: only these are read. Older kernels interrupt a
# CPU to read its clock and wait for 20 ms.
MOST_CPUS: Final = 16
BUSY_SHARE: Final = 0.2
HERTZ_PER_KILOHERTZ: Final = 1_000
MILLISECONDS: Final = 1_000


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
        now = dict(_times(self._stat))
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


def _times(stat: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    with stat.open() as file:
        for line in takewhile(lambda line: line.startswith("cpu"), file):
            name, *columns = line.split()
            if name != "cpu":
                ticks = [int(column) for column in columns[:8]]
                idle = ticks[3] + ticks[4]  # And iowait.
                yield name, (sum(ticks) - idle, sum(ticks))

"""Node CPU: how the node's CPUs spend their time."""

from collections.abc import Iterator
from typing import Final

import psutil
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

# Guest time is left out: the kernel counts it in user and nice already.
MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# idle and iowait step back a little now and then (proc(5)); more than this is a real reset.
JITTER_SECONDS: Final = 3.0


class NodeCpuCollector:
    """Expose the node's CPU time by mode, summed over its CPUs."""

    name = "node_cpu"
    interval_seconds = 1.0

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        cpu = CounterMetricFamily(
            "rankskew_node_cpu_seconds_total",
            "CPU time of the node by mode, in seconds summed over its CPUs (/proc/stat, read every "
            "second).",
            labels=["mode"],
        )
        times = psutil.cpu_times()._asdict()
        for mode in MODES:
            if mode in times:
                cpu.add_metric([mode], self._without_jitter(mode, times[mode]))
        yield cpu

    def _without_jitter(self, mode: str, seconds: float) -> float:
        last_seconds = self._seconds.get(mode, 0.0)
        if not last_seconds - JITTER_SECONDS <= seconds < last_seconds:
            self._seconds[mode] = seconds
        return self._seconds[mode]

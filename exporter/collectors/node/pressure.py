"""Node pressure: how long tasks have waited for CPU, memory and I/O (PSI)."""

import re
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.node.files import Mounts
from rank_probe.process.small_files import text_of

MICROSECONDS: Final = 1_000_000
# The kernel's word for each metric, and the resources for which it means anything: a whole node
# never stalls for CPU, so that line of pressure/cpu is always 0.
WAITING: Final = ("some", ("cpu", "memory", "io"))
STALLED: Final = ("full", ("memory", "io"))


class NodePressureCollector:
    """Expose the kernel's pressure stall totals of the whole node."""

    name = "node_pressure"
    interval_seconds = 5.0

    def __init__(self, mounts: Mounts) -> None:
        self._folder = mounts.procfs / "pressure"

    def collect(self) -> Iterator[Metric]:
        waiting = CounterMetricFamily(
            "rankskew_node_pressure_waiting_seconds_total",
            "Time in which at least one task of the node waited for the resource, in seconds "
            "(some in /proc/pressure, read every 5 s).",
            labels=["resource"],
        )
        stalled = CounterMetricFamily(
            "rankskew_node_pressure_stalled_seconds_total",
            "Time in which all non-idle tasks of the node waited for the resource, in seconds "
            "(full in /proc/pressure, read every 5 s).",
            labels=["resource"],
        )
        for family, (word, resources) in ((waiting, WAITING), (stalled, STALLED)):
            for resource in resources:
                total = re.search(rf"^{word} .*total=(\d+)", self._text_of(resource), re.MULTILINE)
                if total:
                    family.add_metric([resource], int(total[1]) / MICROSECONDS)
        yield from (waiting, stalled)

    def _text_of(self, resource: str) -> str:
        # With psi=0 the files exist, and reading them fails with "not supported".
        return text_of(self._folder / resource) or ""

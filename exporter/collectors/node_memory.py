"""Node memory: how much the node has, and how much of it programs can still take."""

from collections.abc import Iterator

import psutil
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric


class NodeMemoryCollector:
    """Expose the node's total and available memory."""

    name = "node_memory"
    interval_seconds = 1.0

    def collect(self) -> Iterator[Metric]:
        memory = psutil.virtual_memory()
        yield GaugeMetricFamily(
            "rankskew_node_memory_total_bytes",
            "Memory of the node, in bytes (/proc/meminfo, read every second).",
            value=memory.total,
        )
        yield GaugeMetricFamily(
            "rankskew_node_memory_available_bytes",
            "Memory that programs can take without swapping, in bytes (/proc/meminfo, read every "
            "second).",
            value=memory.available,
        )

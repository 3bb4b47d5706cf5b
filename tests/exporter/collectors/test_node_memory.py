"""Memory is exposed in bytes."""

import psutil

from exporter.collectors.node_memory import NodeMemoryCollector
from tests.exporter.collectors.expose import expose, series


def test_memory_of_this_node_is_exposed_in_bytes() -> None:
    """Total memory is the node's, and some of it, not more than all, is available."""
    values = dict(line.split() for line in series(expose(NodeMemoryCollector())))
    total = float(values["rankskew_node_memory_total_bytes"])

    assert total == psutil.virtual_memory().total
    assert 0 < float(values["rankskew_node_memory_available_bytes"]) <= total

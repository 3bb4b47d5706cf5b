"""Pressure is exposed in seconds, for each resource that the kernel accounts."""

from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.pressure import NodePressureCollector
from tests.exporter.collectors.expose import shown
from tests.exporter.collectors.host import HOST, copy_of_host, unreadable

SHOWN = [
    'rankskew_node_pressure_waiting_seconds_total{resource="cpu"} 12.5',
    'rankskew_node_pressure_waiting_seconds_total{resource="memory"} 0.75',
    'rankskew_node_pressure_waiting_seconds_total{resource="io"} 4.0',
    'rankskew_node_pressure_stalled_seconds_total{resource="memory"} 0.25',
    'rankskew_node_pressure_stalled_seconds_total{resource="io"} 3.5',
]


@pytest.mark.parametrize("built", [False, True], ids=["not built", "psi=0"])
def test_kernel_without_pressure_turns_collector_off(built: bool, tmp_path: Path) -> None:
    """Without the folder, or with files that cannot be read, the collector does not start."""
    host = copy_of_host(tmp_path)
    for resource in ("cpu", "memory", "io"):
        file = host.procfs / "pressure" / resource
        unreadable(file) if built else file.unlink()

    with pytest.raises(NotAvailable, match="psi=1"):
        NodePressureCollector(host)


def test_totals_are_exposed_in_seconds_and_one_that_cannot_be_read_hides_no_other(
    tmp_path: Path,
) -> None:
    """The kernel's microseconds arrive as seconds; nothing waits for all CPUs of a node."""
    assert shown(NodePressureCollector(HOST)) == SHOWN
    host = copy_of_host(tmp_path)
    unreadable(host.procfs / "pressure/io")

    assert shown(NodePressureCollector(host)) == [line for line in SHOWN if "io" not in line[-14:]]

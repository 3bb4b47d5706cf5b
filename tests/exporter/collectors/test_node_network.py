"""Network bytes are exposed for each device that is not left out."""

from typing import NamedTuple

import psutil
import pytest

from exporter.collectors.node_network import NodeNetworkCollector
from exporter.settings import Settings
from tests.exporter.collectors.expose import expose, series


class Counters(NamedTuple):
    """The two of psutil's counters that are read."""

    bytes_sent: int
    bytes_recv: int


def with_devices(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    counters = {device: Counters(bytes_sent=10, bytes_recv=20) for device in devices}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counters)


def test_node_without_devices_exposes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device means no series, and that is no failure."""
    with_devices(monkeypatch)
    page = expose(NodeNetworkCollector(""))

    assert series(page) == []
    assert 'rankskew_collector_success{collector="node_network"} 1.0' in page


def test_bytes_are_exposed_by_device_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Received and sent bytes are two metrics, as Prometheus asks."""
    with_devices(monkeypatch, "eth0")

    assert series(expose(NodeNetworkCollector(""))) == [
        'rankskew_node_network_receive_bytes_total{device="eth0"} 20.0',
        'rankskew_node_network_transmit_bytes_total{device="eth0"} 10.0',
    ]


def test_default_leaves_out_virtual_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every container brings a veth; none of them may cost series. Real devices all stay."""
    virtual = ["lo", "veth12ab", "docker0", "br-90ab", "cali1234", "flannel.1", "tap0", "ifb0"]
    real = ["bond0", "enp3s0", "eth0", "ib0", "rocep1"]
    with_devices(monkeypatch, *virtual, *real)
    page = expose(NodeNetworkCollector(Settings().node_network_device_exclude))

    assert [line.split('"')[1] for line in series(page) if "_receive_" in line] == real


def test_this_node_can_be_read() -> None:
    """The real counters of this machine are understood."""
    page = expose(NodeNetworkCollector(""))

    assert 'rankskew_collector_success{collector="node_network"} 1.0' in page
    assert 'rankskew_node_network_receive_bytes_total{device="lo"}' in page

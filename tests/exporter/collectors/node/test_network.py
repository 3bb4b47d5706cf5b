"""Each network device that carries traffic, and what TCP had to send again, are exposed."""

from pathlib import Path

import pytest

from exporter.collectors.node.files import Mounts
from exporter.collectors.node.network import NodeNetworkCollector
from exporter.settings import Settings
from tests.exporter.collectors.expose import shown
from tests.exporter.collectors.host import HOST, copy_of_host, unreadable, write

HEADING = "Inter-| Receive\n face |bytes\n"
TCP = [
    "rankskew_node_tcp_sent_segments_total 80000.0",
    "rankskew_node_tcp_retransmitted_segments_total 240.0",
]


@pytest.fixture
def host(tmp_path: Path) -> Mounts:
    """A node that a test may change."""
    return copy_of_host(tmp_path)


def carry(host: Mounts, *devices: str, errors: tuple[int, int] = (0, 0), of: str = "net") -> None:
    """Give the node these devices only."""
    counts = "{}: 10 1 {} 0 0 0 0 0 20 1 {} 0 0 0 0 0\n"
    lines = [counts.format(device, *errors) for device in devices]
    write(host.procfs / of / "dev", HEADING + "".join(lines))


def lines(host: Mounts, word: str, exclude: str = "") -> list[str]:
    """Return the series with *word* in their names or labels."""
    return [line for line in shown(NodeNetworkCollector(host, exclude)) if word in line]


def devices(host: Mounts, exclude: str = "") -> list[str]:
    return [line.split('"')[1] for line in lines(host, "_receive_bytes_", exclude)]


def test_node_without_devices_exposes_none(host: Mounts) -> None:
    """No device means no series, and is not a failure."""
    carry(host)
    (host.procfs / "net/snmp").unlink()

    assert lines(host, "") == []


def test_devices_are_exposed_by_direction_and_tcp_by_what_it_sent_again() -> None:
    """Of a dozen ports those without a cable, which never carried a byte, cost no series."""
    assert lines(HOST, 'device="ens1f0"') == [
        'rankskew_node_network_receive_bytes_total{device="ens1f0"} 5e+06',
        'rankskew_node_network_transmit_bytes_total{device="ens1f0"} 3e+06',
        'rankskew_node_network_receive_drops_total{device="ens1f0"} 7.0',
        'rankskew_node_network_transmit_drops_total{device="ens1f0"} 2.0',
        'rankskew_node_network_speed_bytes_per_second{device="ens1f0"} 1.25e+10',
    ]
    assert devices(HOST) == ["ens1f0", "ibp24s0", "lo", "vethd1f0a2b3"]
    assert lines(HOST, "_tcp_") == TCP


def test_errors_are_those_of_the_shown_devices_in_both_directions(host: Mounts) -> None:
    """Damaged packets count whichever way they went, and not those of a device left out."""
    carry(host, "eth0", "eth1", "veth7", errors=(20, 5))

    assert lines(host, "errors", "veth.*") == ["rankskew_node_network_errors_total 50.0"]


def test_speed_is_shown_of_devices_with_a_link(host: Mounts) -> None:
    """A virtual device says -1 or 0, one without a link refuses, one without traffic is hidden."""
    carry(host, "eth0", "eth1", "bond0", "tap0")
    for device, speed in (("eth0", "10000"), ("bond0", "-1"), ("tap0", "0")):
        write(host.sysfs / "class/net" / device / "speed", f"{speed}\n")
    (host.sysfs / "class/net/eth1/speed").mkdir(parents=True)

    assert lines(host, "speed") == [
        'rankskew_node_network_speed_bytes_per_second{device="eth0"} 1.25e+09'
    ]


def test_tcp_without_counters_hides_no_device(host: Mounts) -> None:
    """A container may hide the file; the devices stay."""
    unreadable(host.procfs / "net/snmp")

    assert lines(host, "_tcp_") == []
    assert devices(host) == devices(HOST)


def test_default_leaves_out_virtual_devices(host: Mounts) -> None:
    """Every container brings a device; none of them may cost series. Real devices all stay."""
    virtual = ["lo", "veth12ab", "docker0", "br-90ab", "cali1234", "flannel.1", "tap0", "ifb0"]
    virtual += ["lxc1f2e3d", "cilium_host", "eni0123456789a", "vxlan.calico", "tunl0", "azv12"]
    real = ["bond0", "ens1f0", "enp3s0", "eth0", "eth0:1", "ib0", "rocep1"]
    carry(host, *virtual, *real)

    assert devices(host, Settings().node_network_device_exclude) == sorted(real)


def test_container_with_the_nodes_proc_shows_the_nodes_devices(host: Mounts) -> None:
    """Under net/ a process sees its own network; the node's is that of its first process."""
    carry(host, "ens9f0", of="1/net")
    write(host.procfs / "1/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 70 3\n")

    assert devices(host) == ["ens9f0"]
    assert lines(host, "retransmitted") == [TCP[1].replace("240", "3")]

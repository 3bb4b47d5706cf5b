"""Each network device that carries traffic, and what TCP had to send again, are exposed."""

from pathlib import Path

from exporter.collectors.node.network import NodeNetworkCollector
from exporter.settings import Settings
from tests.exporter.collectors.expose import expose, series
from tests.exporter.collectors.host import HOST, copy_of_host, unreadable, write

HEADING = "Inter-| Receive\n face |bytes\n"


def line(device: str, received: int = 10, sent: int = 20) -> str:
    return f"{device}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def shown(page: str) -> list[str]:
    """Return the devices of the page."""
    return [entry.split('"')[1] for entry in series(page) if "_receive_bytes_" in entry]


def test_node_without_devices_exposes_none(tmp_path: Path) -> None:
    """No device means no series, and is not a failure."""
    host = copy_of_host(tmp_path)
    write(host.procfs / "net/dev", HEADING)
    (host.procfs / "net/snmp").unlink()
    page = expose(NodeNetworkCollector(host, ""))

    assert series(page) == []
    assert 'rankskew_collector_success{collector="node_network"} 1.0' in page


def test_bytes_and_drops_are_exposed_by_device_and_direction() -> None:
    """Received and sent are metrics of their own, as Prometheus asks."""
    page = expose(NodeNetworkCollector(HOST, ""))

    assert [entry for entry in series(page) if 'device="ens1f0"' in entry] == [
        'rankskew_node_network_receive_bytes_total{device="ens1f0"} 5e+06',
        'rankskew_node_network_transmit_bytes_total{device="ens1f0"} 3e+06',
        'rankskew_node_network_receive_drops_total{device="ens1f0"} 7.0',
        'rankskew_node_network_transmit_drops_total{device="ens1f0"} 2.0',
        'rankskew_node_network_speed_bytes_per_second{device="ens1f0"} 1.25e+10',
    ]


def test_errors_are_those_of_the_shown_devices_in_both_directions(tmp_path: Path) -> None:
    """Damaged packets count whichever way they went, and not those of a device left out."""
    host = copy_of_host(tmp_path)
    counts = "10 1 {} 0 0 0 0 0 20 1 {} 0 0 0 0 0\n"
    devices = {"eth0": (4, 1), "eth1": (20, 0), "veth7": (300, 0)}
    lines = [f"{name}: {counts.format(*errors)}" for name, errors in devices.items()]
    write(host.procfs / "net/dev", HEADING + "".join(lines))

    page = expose(NodeNetworkCollector(host, "veth.*"))
    assert "rankskew_node_network_errors_total 25.0" in series(page)


def test_speed_is_shown_of_devices_with_a_link(tmp_path: Path) -> None:
    """A virtual device says -1 or 0, one without a link refuses, one without traffic is hidden."""
    host = copy_of_host(tmp_path)
    write(host.procfs / "net/dev", HEADING + "".join(map(line, ("eth0", "eth1", "bond0", "tap0"))))
    write(host.sysfs / "class/net/eth0/speed", "10000\n")
    (host.sysfs / "class/net/eth1/speed").mkdir(parents=True)
    write(host.sysfs / "class/net/bond0/speed", "-1\n")
    write(host.sysfs / "class/net/tap0/speed", "0\n")

    page = expose(NodeNetworkCollector(host, ""))
    assert [entry for entry in series(page) if "speed" in entry] == [
        'rankskew_node_network_speed_bytes_per_second{device="eth0"} 1.25e+09'
    ]


def test_what_tcp_sent_again_is_exposed() -> None:
    """Segments, and those of them that were lost or late."""
    assert [
        entry for entry in series(expose(NodeNetworkCollector(HOST, ""))) if "tcp" in entry
    ] == [
        "rankskew_node_tcp_sent_segments_total 80000.0",
        "rankskew_node_tcp_retransmitted_segments_total 240.0",
    ]


def test_tcp_without_counters_hides_no_device(tmp_path: Path) -> None:
    """A container may hide the file; the devices stay."""
    host = copy_of_host(tmp_path)
    unreadable(host.procfs / "net/snmp")
    page = expose(NodeNetworkCollector(host, ""))

    assert "rankskew_node_tcp_sent_segments_total " not in "\n".join(series(page))
    assert shown(page) == ["ens1f0", "ibp24s0", "lo", "vethd1f0a2b3"]
    assert 'rankskew_collector_success{collector="node_network"} 1.0' in page


def test_device_that_never_carried_a_byte_costs_no_series() -> None:
    """A large node has a dozen ports without a cable."""
    page = expose(NodeNetworkCollector(HOST, ""))

    assert shown(page) == ["ens1f0", "ibp24s0", "lo", "vethd1f0a2b3"]


def test_default_leaves_out_virtual_devices(tmp_path: Path) -> None:
    """Every container brings a device; none of them may cost series. Real devices all stay."""
    virtual = ["lo", "veth12ab", "docker0", "br-90ab", "cali1234", "flannel.1", "tap0", "ifb0"]
    virtual += ["lxc1f2e3d", "cilium_host", "eni0123456789a", "vxlan.calico", "tunl0", "azv12"]
    real = ["bond0", "ens1f0", "enp3s0", "eth0", "eth0:1", "ib0", "rocep1"]
    host = copy_of_host(tmp_path)
    write(host.procfs / "net/dev", HEADING + "".join(line(name) for name in virtual + real))
    page = expose(NodeNetworkCollector(host, Settings().node_network_device_exclude))

    assert shown(page) == sorted(real)


def test_container_with_the_nodes_proc_shows_the_nodes_devices(tmp_path: Path) -> None:
    """Under net/ a process sees its own network; the node's is that of its first process."""
    host = copy_of_host(tmp_path)
    write(host.procfs / "1/net/dev", HEADING + line("ens9f0"))
    write(host.procfs / "1/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 70 3\n")
    page = expose(NodeNetworkCollector(host, ""))

    assert shown(page) == ["ens9f0"]
    assert "rankskew_node_tcp_retransmitted_segments_total 3.0" in series(page)

"""InfiniBand and RoCE ports are exposed, and none that is broken hides another."""

import re
import shutil
from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.infiniband import ERRORS, NodeInfinibandCollector
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import HOST, INFINIBAND, copy_of_host, unreadable, write

PORT = INFINIBAND / "mlx5_0/ports/1"
# What is exposed of each port: words of 4 bytes become bytes, Gb/s become bytes per second.
PORTS = {
    "mlx5_0": {
        "receive_bytes_total": 4000,
        "transmit_bytes_total": 8000,
        "errors_total": 4,  # Congestion is none.
        "rate_bytes_per_second": 50e9,
    },
    # RoCE: the link's own counters stay 0; those of the transport show lost packets.
    "mlx5_1": {
        "receive_bytes_total": 40,
        "transmit_bytes_total": 80,
        "errors_total": 6,
        "rate_bytes_per_second": 25e9,
    },
    # It has "N/A (no PMA)" instead of some counters.
    "irdma0": {"rate_bytes_per_second": 3.125e9},
}


@pytest.fixture
def host(tmp_path: Path) -> Mounts:
    """A node that a test may change."""
    return copy_of_host(tmp_path)


def ports(collector: NodeInfinibandCollector) -> dict[str, dict[str, float]]:
    """Return the values of each device's port by metric; of all ports together under ""."""
    found: dict[str, dict[str, float]] = {}
    for line in shown(collector):
        name, device, value = re.match(r"rankskew_infiniband_(\w+)(.*) (\S+)", line).groups()  # type: ignore[union-attr] # or it fails
        device = "".join(re.findall(r'device="(\w+)",port="1"', device))
        found.setdefault(device, {})[name] = float(value)
    return found


@pytest.mark.parametrize("folder", ["class/infiniband", "class"])
def test_node_without_ports_turns_collector_off(folder: str, tmp_path: Path) -> None:
    """Without RDMA hardware, with the modules loaded or not, the collector does not start."""
    (tmp_path / folder).mkdir(parents=True)

    with pytest.raises(NotAvailable, match="no InfiniBand"):
        NodeInfinibandCollector(Mounts(tmp_path, tmp_path))


def test_ports_are_exposed_as_far_as_they_tell() -> None:
    """InfiniBand ports wait to send; RoCE ports count marks, and packets that went astray."""
    found = ports(NodeInfinibandCollector(HOST))

    assert {device: found[device] for device in PORTS} == PORTS
    # The rate that the kernel still names for a port that is down would hide that.
    assert found["mlx5_2"]["rate_bytes_per_second"] == 0
    assert found[""] == {"transmit_wait_total": 70_000, "congestion_events_total": 1_000}


@pytest.mark.parametrize("file", ["state", "rate", "counters", "hw_counters", "."])
def test_port_that_cannot_be_read_hides_no_neighbour(file: str, host: Mounts) -> None:
    """A driver may refuse any of a port's files; the rest of the page is complete."""
    target = host.sysfs / PORT / file
    if target.is_dir():
        shutil.rmtree(target)
    else:
        unreadable(target)

    assert ports(NodeInfinibandCollector(host))["mlx5_1"] == PORTS["mlx5_1"]


def test_old_kernel_is_read_where_its_counters_have_64_bits(host: Mounts) -> None:
    """Those of 32 bits stop at 16 GiB, so the others come first."""
    write(host.sysfs / PORT / "counters/port_rcv_data", "4294967295\n")
    write(host.sysfs / PORT / "counters_ext/port_rcv_data_64", "5000000000\n")

    assert ports(NodeInfinibandCollector(host))["mlx5_0"]["receive_bytes_total"] == 20e9


def test_counter_that_cannot_be_read_once_is_no_reset(host: Mounts) -> None:
    """The sums keep what they knew of it; a rate must not explode when it comes back."""
    collector = NodeInfinibandCollector(host)
    ports(collector)
    for counter in ("symbol_error", "port_xmit_wait"):
        unreadable(host.sysfs / PORT / "counters" / counter)
    write(host.sysfs / PORT / "counters/link_downed", "2\n")
    write(host.sysfs / INFINIBAND / "mlx5_2/ports/1/counters/port_xmit_wait", "5\n")
    found = ports(collector)

    assert found["mlx5_0"]["errors_total"] == 5
    assert found[""]["transmit_wait_total"] == 70_005


def test_virtual_functions_cost_no_series(host: Mounts) -> None:
    """A node that lends its port to virtual machines may have hundreds; they share the port."""
    virtual = host.sysfs / INFINIBAND / "mlx5_9"
    shutil.copytree(host.sysfs / INFINIBAND / "mlx5_0", virtual)
    write(virtual / "device/physfn/vendor", "0x15b3\n")

    assert "mlx5_9" not in ports(NodeInfinibandCollector(host))


def test_help_names_every_counter_of_the_sum() -> None:
    """Who sees errors knows what was counted."""
    page = expose(NodeInfinibandCollector(HOST))
    described = next(line for line in page.splitlines() if "HELP rankskew_infiniband_err" in line)

    assert all(Path(file).name in described for file in ERRORS)


def test_ports_that_count_no_congestion_have_no_series(host: Mounts) -> None:
    """A card of another make has neither counter."""
    for device in ("mlx5_0", "mlx5_1", "mlx5_2"):
        port = host.sysfs / INFINIBAND / device / "ports/1"
        unreadable(port / "counters/port_xmit_wait")
        shutil.rmtree(port / "hw_counters", ignore_errors=True)

    assert "" not in ports(NodeInfinibandCollector(host))

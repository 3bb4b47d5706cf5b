"""InfiniBand and RoCE ports are exposed, and none that is broken hides another."""

import shutil
from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.infiniband import ERRORS, NodeInfinibandCollector
from tests.exporter.collectors.expose import expose, series
from tests.exporter.collectors.host import HOST, INFINIBAND, copy_of_host, unreadable, write

PORT = INFINIBAND / "mlx5_0/ports/1"


def of_port(page: str, device: str = "mlx5_0") -> dict[str, float]:
    """Return the port's values by metric, without the common start of their names."""
    lines = [line for line in series(page) if f'device="{device}"' in line]
    return {
        line.split("{")[0].removeprefix("rankskew_infiniband_"): float(line.split()[-1])
        for line in lines
    }


@pytest.mark.parametrize("folder", ["class/infiniband", "class"])
def test_node_without_ports_turns_collector_off(folder: str, tmp_path: Path) -> None:
    """Without RDMA hardware, with the modules loaded or not, the collector does not start."""
    (tmp_path / folder).mkdir(parents=True)

    with pytest.raises(NotAvailable, match="no InfiniBand"):
        NodeInfinibandCollector(Mounts(tmp_path, tmp_path))


def test_port_is_exposed_in_bytes() -> None:
    """Words of 4 bytes become bytes, Gb/s become bytes per second; congestion is not an error."""
    page = expose(NodeInfinibandCollector(HOST))

    assert 'rankskew_infiniband_receive_bytes_total{device="mlx5_0",port="1"} 4000.0' in page
    assert of_port(page) == {
        "receive_bytes_total": 4000,
        "transmit_bytes_total": 8000,
        "errors_total": 4,
        "rate_bytes_per_second": 50e9,
    }


def test_roce_port_is_one_too_and_shows_what_was_sent_again() -> None:
    """On Ethernet the link's own counters stay 0; those of the transport show lost packets."""
    assert of_port(expose(NodeInfinibandCollector(HOST)), "mlx5_1") == {
        "receive_bytes_total": 40,
        "transmit_bytes_total": 80,
        "errors_total": 6,
        "rate_bytes_per_second": 25e9,
    }


def test_port_that_is_down_shows_a_rate_of_zero() -> None:
    """The rate that the kernel still names for it would hide that it is down."""
    page = expose(NodeInfinibandCollector(HOST))

    assert of_port(page, "mlx5_2")["rate_bytes_per_second"] == 0


def test_counters_without_a_number_are_absent_and_hide_nobody() -> None:
    """irdma has N/A (no PMA) instead of some counters; its rate and all other ports stay."""
    page = expose(NodeInfinibandCollector(HOST))

    assert of_port(page, "irdma0") == {"rate_bytes_per_second": 3.125e9}
    assert len(of_port(page, "mlx5_0")) == 4
    assert 'rankskew_collector_success{collector="node_infiniband"} 1.0' in page


@pytest.mark.parametrize("file", ["state", "rate", "counters", "hw_counters", "."])
def test_port_that_cannot_be_read_hides_no_neighbour(file: str, tmp_path: Path) -> None:
    """A driver may refuse any of a port's files; the rest of the page is complete."""
    host = copy_of_host(tmp_path)
    target = host.sysfs / PORT / file
    if target.is_dir():
        shutil.rmtree(target)
    else:
        unreadable(target)
    page = expose(NodeInfinibandCollector(host))

    assert len(of_port(page, "mlx5_1")) == 4
    assert 'rankskew_collector_success{collector="node_infiniband"} 1.0' in page


def test_old_kernel_is_read_where_its_counters_have_64_bits(tmp_path: Path) -> None:
    """Those of 32 bits stop at 16 GiB, so the others come first."""
    host = copy_of_host(tmp_path)
    write(host.sysfs / PORT / "counters/port_rcv_data", "4294967295\n")
    write(host.sysfs / PORT / "counters_ext/port_rcv_data_64", "5000000000\n")

    assert of_port(expose(NodeInfinibandCollector(host)))["receive_bytes_total"] == 20e9


def test_error_counter_that_cannot_be_read_once_is_no_reset(tmp_path: Path) -> None:
    """The sum keeps what it knew of it; a rate must not explode when it comes back."""
    host = copy_of_host(tmp_path)
    collector = NodeInfinibandCollector(host)
    expose(collector)
    unreadable(host.sysfs / PORT / "counters/symbol_error")
    write(host.sysfs / PORT / "counters/link_downed", "2\n")

    assert of_port(expose(collector))["errors_total"] == 5


def test_virtual_functions_cost_no_series(tmp_path: Path) -> None:
    """A node that lends its port to virtual machines may have hundreds; they share the port."""
    host = copy_of_host(tmp_path)
    virtual = host.sysfs / INFINIBAND / "mlx5_9"
    shutil.copytree(host.sysfs / INFINIBAND / "mlx5_0", virtual)
    write(virtual / "device/physfn/vendor", "0x15b3\n")

    assert of_port(expose(NodeInfinibandCollector(host)), "mlx5_9") == {}


def test_help_names_every_counter_of_the_sum() -> None:
    """Who sees errors knows what was counted."""
    page = expose(NodeInfinibandCollector(HOST))
    described = next(line for line in page.splitlines() if "HELP rankskew_infiniband_err" in line)

    assert all(Path(file).name in described for file in ERRORS)


def congestion(page: str) -> dict[str, float]:
    """Return what is exposed of all ports together."""
    lines = [line.split() for line in series(page) if "{" not in line]
    return {name.removeprefix("rankskew_infiniband_"): float(value) for name, value in lines}


def test_congestion_is_that_of_all_ports_together() -> None:
    """InfiniBand ports wait to send; RoCE ports count marks, and packets that went astray."""
    assert congestion(expose(NodeInfinibandCollector(HOST))) == {
        "transmit_wait_total": 70_000,
        "congestion_events_total": 1_000,
    }


def test_ports_that_count_no_congestion_have_no_series(tmp_path: Path) -> None:
    """A card of another make has neither counter."""
    host = copy_of_host(tmp_path)
    for device in ("mlx5_0", "mlx5_1", "mlx5_2"):
        port = host.sysfs / INFINIBAND / device / "ports/1"
        unreadable(port / "counters/port_xmit_wait")
        shutil.rmtree(port / "hw_counters", ignore_errors=True)

    assert congestion(expose(NodeInfinibandCollector(host))) == {}


def test_wait_that_cannot_be_read_once_is_no_reset(tmp_path: Path) -> None:
    """The sum keeps what it knew of each port."""
    host = copy_of_host(tmp_path)
    collector = NodeInfinibandCollector(host)
    expose(collector)
    unreadable(host.sysfs / PORT / "counters/port_xmit_wait")
    write(host.sysfs / INFINIBAND / "mlx5_2/ports/1/counters/port_xmit_wait", "5\n")

    assert congestion(expose(collector))["transmit_wait_total"] == 70_005

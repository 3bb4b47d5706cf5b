"""Disks, mounts, network devices and InfiniBand ports; none that is broken hides another."""

import re
import shutil
from pathlib import Path

import pytest

from exporter.collectors.base import NotAvailable
from exporter.collectors.node.disk import NodeDiskCollector
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.infiniband import NodeInfinibandCollector
from exporter.collectors.node.mounts import NodeMountsCollector
from exporter.collectors.node.network import NodeNetworkCollector
from exporter.settings import Settings
from tests.exporter.collectors.expose import expose, shown
from tests.exporter.collectors.host import (
    HOST,
    INFINIBAND,
    add_disk,
    unreadable,
    write,
)

EXCLUDED = Settings().node_disk_device_exclude
# Sectors of the fixture's disks: nvme0n1, nvme1n1 by its path, and sda.
READ = 512 * (1000 + 3000 + 50)
WRITTEN = 512 * (400 + 600 + 10)


def total(collector: NodeDiskCollector) -> list[float]:
    """Return the read and the written bytes of the page."""
    return [float(line.split()[-1]) for line in shown(collector) if "_bytes_" in line]


def by_disk(collector: NodeDiskCollector) -> dict[str, float]:
    """Return what the page says of single disks: "busy_seconds nvme0n1" and the like."""
    found = re.findall(r'disk_(\w+)_total\{device="(\w+)"\} (\S+)', expose(collector))
    return {f"{name} {disk}": float(value) for name, disk, value in found}


def set_disk(
    host: Mounts, disk: str, reads: int, read_milliseconds: int, busy_milliseconds: int
) -> None:
    """Change what a disk has done; the columns are those of Linux' iostats.rst."""
    lines = []
    for line in (host.procfs / "diskstats").read_text().splitlines():
        columns = line.split()
        if columns[2] == disk:
            columns[3], columns[6] = str(reads), str(read_milliseconds)
            columns[12] = str(busy_milliseconds)
        lines.append(" ".join(columns))
    (host.procfs / "diskstats").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("missing", ["procfs", "sysfs"])
def test_node_without_disk_statistics_turns_collector_off(missing: str, tmp_path: Path) -> None:
    """A sandbox that hides either file system means that the collector does not start."""
    with pytest.raises(NotAvailable, match="diskstats"):
        NodeDiskCollector(HOST._replace(**{missing: tmp_path}), "")


@pytest.mark.parametrize(
    ("exclude", "read", "written"),
    [
        # Partitions, RAID, volumes, loop devices and optical drives add nothing to it.
        (EXCLUDED, READ, WRITTEN),
        # The flag takes whole names.
        (r"sda|sr\d+|nvme1", READ - 512 * 50, WRITTEN - 512 * 10),
    ],
)
def test_bytes_are_summed_over_the_physical_disks(
    host: Mounts, exclude: str, read: float, written: float
) -> None:
    assert total(NodeDiskCollector(host, exclude)) == [read, written]


def test_busiest_disk_has_series_of_its_own(host: Mounts) -> None:
    """A slow disk of an array is busier than its neighbours, whatever they did before."""
    collector = NodeDiskCollector(host, EXCLUDED)
    assert "busy_seconds sda" not in by_disk(collector)
    set_disk(host, "sda", reads=200, read_milliseconds=5_000, busy_milliseconds=4_000)

    assert by_disk(collector) == {
        "busy_seconds sda": 4.0,
        "reads sda": 200,
        "read_seconds sda": 5.0,
    }


# Older kernels count at the paths only, newer ones at the disk as well.
@pytest.mark.parametrize("counted_by_disk", [0, 5000])
def test_nvme_disk_of_several_paths_counts_once(counted_by_disk: int, host: Mounts) -> None:
    """Bytes, and how busy it is."""
    add_disk(host, "nvme5n1", counted_by_disk)
    for path, sectors in (("nvme5c1n1", 2000), ("nvme5c2n1", 3000)):
        add_disk(host, path, sectors)
        set_disk(host, path, reads=50, read_milliseconds=700, busy_milliseconds=500)
    collector = NodeDiskCollector(host, EXCLUDED)

    assert total(collector) == [READ + 512 * 5000, WRITTEN + 512 * 5000]
    assert by_disk(collector) == {
        "busy_seconds nvme5n1": 1.0,
        "reads nvme5n1": 100,
        "read_seconds nvme5n1": 1.4,
    }


def test_disk_that_goes_and_comes_back_does_not_move_the_sum_back(host: Mounts) -> None:
    """A falling sum would look like a reset of all disks, and show bytes that nobody read."""
    without = (host.procfs / "diskstats").read_text()
    add_disk(host, "sdb", 100)
    collector = NodeDiskCollector(host, EXCLUDED)
    sums = [total(collector)[0]]
    (host.procfs / "diskstats").write_text(without)
    sums.append(total(collector)[0])
    add_disk(host, "sdb", 1)
    sums.append(total(collector)[0])

    assert sums == [READ + 512 * 100, READ + 512 * 100, READ + 512 * 101]


LLITE = "fs/lustre/llite/scratch-ffff8f0c1e2d3000/stats"


def busiest(host: Mounts) -> list[str]:
    return shown(NodeMountsCollector(host))


def export(export: str, operations: float, seconds: float, fstype: str = "nfs") -> list[str]:
    """Return the series of an export."""
    labels = f'{{export="{export}",fstype="{fstype}"}}'
    return [
        f"rankskew_node_mount_operations_total{labels} {operations}",
        f"rankskew_node_mount_operation_seconds_total{labels} {seconds}",
    ]


DATA = export("10.0.0.5:/data", 1500.0, 2.88)


def test_node_without_such_mounts_turns_collector_off(tmp_path: Path) -> None:
    """Local file systems are no reason to read mountstats."""
    write(tmp_path / "1/mountstats", "device /dev/sda1 mounted on / with fstype ext4\n")

    with pytest.raises(NotAvailable, match="neither NFS"):
        NodeMountsCollector(Mounts(tmp_path, tmp_path))


def test_export_that_is_slow_now_is_the_one_that_is_shown(host: Mounts) -> None:
    """All operations count, the queue does not; two mounts of an export count once."""
    collector = NodeMountsCollector(host)
    assert shown(collector) == DATA
    lustre = host.procfs / LLITE
    lustre.write_text(lustre.read_text().replace("1600000 ", "3600000 "))

    assert shown(collector) == export("scratch", 500.0, 3.7, "lustre")


def test_mountstats_as_published_are_read(host: Mounts) -> None:
    """Lines of an NFS 4.1 client with Linux 4: 2.6 s of each write were spent in its queue."""
    operations = (
        ("NULL", "0 0 0 0 0 0 0 0"),
        ("READ", "1000 1000 0 220000 1048680000 1689 503927 505677"),
        ("WRITE", "2000 2000 0 2097616000 288000 5178088 48850 5230077"),
        ("OPEN_NOATTR", "1 1 0 272 316 0 18 18"),
    )
    lines = "".join(f"{name:>16}: {counts}\n" for name, counts in operations)
    header = "device xx:/ mounted on /mnt with fstype nfs4 statvers=1.1\n\tper-op statistics\n"
    write(host.procfs / "1/mountstats", header + lines)

    assert busiest(host) == export("xx:/", 3001.0, 552.795)


def test_mount_of_an_older_kernel_is_read(host: Mounts) -> None:
    """Before Linux 5.3 operations have no column of errors."""
    (host.procfs / LLITE).unlink()
    stats = host.procfs / "1/mountstats"
    stats.write_text("device " + stats.read_text().rpartition("device ")[2])

    assert busiest(host) == export("home:/home", 100.0, 0.19)


def test_lustre_that_does_not_time_operations_has_no_series(host: Mounts) -> None:
    """Before Lustre 2.13 there are counts only, from which nothing can be concluded."""
    write(host.procfs / LLITE, "open  5 samples [regs]\nread_bytes  1 samples [bytes] 1 2 3\n")
    (host.procfs / "1/mountstats").unlink()

    with pytest.raises(NotAvailable):
        busiest(host)


def test_lustre_is_found_in_debugfs_too(host: Mounts) -> None:
    """Its statistics have moved from /proc to /sys/kernel/debug."""
    (host.procfs / "1/mountstats").unlink()
    moved = host.procfs / LLITE
    write(host.sysfs / LLITE.replace("fs", "kernel/debug", 1), moved.read_text())
    moved.unlink()

    assert busiest(host) == export("scratch", 500.0, 1.7, "lustre")


def test_mounts_of_the_exporter_are_read_without_rights(host: Mounts) -> None:
    """Only root reads those of process 1."""
    write(host.procfs / "self/mountstats", (host.procfs / "1/mountstats").read_text())
    (host.procfs / "1/mountstats").unlink()

    assert busiest(host) == DATA


def test_lines_that_are_not_understood_are_left_out(host: Mounts) -> None:
    """A kernel that writes something else costs readings, not the collector."""
    (host.procfs / LLITE).unlink()
    stats = host.procfs / "1/mountstats"
    stats.write_text(stats.read_text().replace("READ: 1000", "READ: many"))

    assert busiest(host)[0] == export("10.0.0.5:/data", 500.0, 0)[0]


HEADING = "Inter-| Receive\n face |bytes\n"
TCP = [
    "rankskew_node_tcp_sent_segments_total 80000.0",
    "rankskew_node_tcp_retransmitted_segments_total 240.0",
]


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

"""The /proc and /sys of a simulated node, as small files for the exporter's own collectors."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from exporter.collectors.node.files import Mounts
from fleet_simulator.faults import Kind
from fleet_simulator.training import RUN_SECONDS, Training

TICKS: Final = os.sysconf("SC_CLK_TCK")
# One line stands for all CPUs of a NUMA node: only their sum is exposed.
NUMA_NODES: Final = 2
CPUS_A_NUMA_NODE: Final = 48
MEMORY_KIB: Final = 2_113_929_216
PORTS: Final = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
PORT_GIGABITS: Final = 400
DEVICE_MEGABITS: Final = 100_000
# Bytes per second: of a port, of the network device, of the disk.
PORT_RATE: Final = 8e9
DEVICE_RATE: Final = 3e6
DISK_RATE: Final = 40e6
SECTOR_BYTES: Final = 512
CLOCK_KILOHERTZ: Final = 3_100_000
# What a node counts per second without any fault; faults add to it.
HOST_COUNTS: Final = {
    "disk_reads": 320.0,
    "disk_milliseconds": 130.0,
    "disk_busy_milliseconds": 110.0,
    "nfs_operations": 100.0,
    "nfs_milliseconds": 80.0,
    "lustre_operations": 100.0,
    "lustre_milliseconds": 60.0,
    "throttled_milliseconds": 0.0,
    "numa_misses": 0.0,
}
NFS_MOUNT: Final = (
    "device 10.0.0.5:/data mounted on /data with fstype nfs4 statvers=1.1\n"
    "\tper-op statistics\n\t        READ: {0} {0} 0 0 0 0 {1} {1} 0\n"
)
SEGMENT_BYTES: Final = 1448
TICK_BYTES: Final = 8
# As often as the quickest collector reads them.
SHOWN_SECONDS: Final = 5.0


class HostFiles:
    """The files of *node* below *directory*; those that change are written by show().

    Small files are most of what a simulation costs, so they are no newer than they have to be.
    """

    def __init__(self, directory: Path, training: Training, node: int) -> None:
        self.mounts = Mounts(directory / "proc", directory / "sys")
        self._training = training
        self._node = node
        self._shown: dict[Path, str] = {}
        self._folders: set[Path] = set()
        self._shown_seconds = -math.inf
        for path, text in self._lasting():
            self._write(path, text)
        self.show(-RUN_SECONDS)

    def show(self, at: float) -> None:
        """Write what the files contain at the time *at* of the simulation."""
        if at - self._shown_seconds < SHOWN_SECONDS:
            return
        self._shown_seconds = at
        for path, text in self._changing(at):
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)
        if self._shown.get(path) != text:
            path.write_text(text)
            self._shown[path] = text

    def _lasting(self) -> Iterator[tuple[Path, str]]:
        proc, sys = self.mounts
        available = int(MEMORY_KIB * 0.71)
        yield (
            proc / "meminfo",
            f"MemTotal: {MEMORY_KIB} kB\nMemFree: {available // 2} kB\n"
            f"MemAvailable: {available} kB\nBuffers: 0 kB\nCached: {available // 2} kB\n"
            "SwapCached: 0 kB\nActive: 0 kB\nInactive: 0 kB\nShmem: 0 kB\nSlab: 0 kB\n",
        )
        for numa in range(NUMA_NODES):
            folder = sys / "devices" / "system" / "node" / f"node{numa}"
            yield folder / "cpulist", f"{numa}\n"
            cpu = sys / "devices" / "system" / "cpu" / f"cpu{numa}"
            yield cpu / "topology" / "physical_package_id", f"{numa}\n"
            total, free = MEMORY_KIB // NUMA_NODES, available // 2 // NUMA_NODES
            name = f"Node {numa}"
            yield folder / "meminfo", f"{name} MemTotal: {total} kB\n{name} MemFree: {free} kB\n"
        for port in PORTS:
            folder = sys / "class" / "infiniband" / port / "ports" / "1"
            yield folder / "state", "4: ACTIVE\n"
            yield folder / "link_layer", "InfiniBand\n"
        yield sys / "class" / "net" / "eth0" / "speed", f"{DEVICE_MEGABITS}\n"
        yield sys / "block" / "nvme0n1" / "device" / "model", "simulated\n"

    def _changing(self, at: float) -> Iterator[tuple[Path, str]]:
        proc, sys = self.mounts
        seconds = at + RUN_SECONDS
        faults = list(self._faults(at))
        yield proc / "stat", self._stat(seconds)
        for resource in ("cpu", "io", "memory"):
            waited = sum(k.pressure.get(resource, 0.0) * since for k, since in faults)
            total = 1e6 * (seconds / 100 + waited)
            lines = [
                f"{w} avg10=0.00 avg60=0.00 avg300=0.00 total={t:.0f}\n"
                for w, t in (("some", total), ("full", total / 4))
            ]
            yield proc / "pressure" / resource, "".join(lines)
        dropped = int(sum(kind.dropped_packets * since for kind, since in faults))
        # Bytes, packets, errs, drop, fifo, frame, compressed, multicast.
        count = f"{DEVICE_RATE * seconds:.0f} 1 0 {dropped} 0 0 0 0"
        yield proc / "net" / "dev", f"Inter-|\n face |\n  eth0: {count} {count}\n"
        count_of = self._counts(seconds, faults)
        sectors = int(DISK_RATE * seconds / SECTOR_BYTES)
        reads = f"{count_of['disk_reads']} 0 {sectors} {count_of['disk_milliseconds']}"
        busy = count_of["disk_busy_milliseconds"]
        yield proc / "diskstats", f" 259 0 nvme0n1 {reads} 1 0 {sectors // 8} 1 0 {busy} 1\n"
        nfs = NFS_MOUNT.format(count_of["nfs_operations"], count_of["nfs_milliseconds"])
        yield proc / "1" / "mountstats", nfs
        microseconds = 1_000 * count_of["lustre_milliseconds"]
        yield (
            proc / "fs" / "lustre" / "llite" / "scratch-ffff0000" / "stats",
            f"read {count_of['lustre_operations']} samples [usec] 1 1 {microseconds} 1\n",
        )
        yield proc / "vmstat", f"oom_kill {sum(kind.oom_kills for kind, _ in faults)}\n"
        misses = sys / "devices" / "system" / "node" / "node0" / "numastat"
        yield misses, f"numa_miss {count_of['numa_misses']}\n"
        clock = int(CLOCK_KILOHERTZ * min((kind.cpu_clock for kind, _ in faults), default=1.0))
        for number in range(NUMA_NODES):
            cpu = sys / "devices" / "system" / "cpu" / f"cpu{number}"
            yield cpu / "cpufreq" / "scaling_cur_freq", f"{clock}\n"
            throttled = count_of["throttled_milliseconds"]
            yield cpu / "thermal_throttle" / "package_throttle_total_time_ms", f"{throttled}\n"
        yield proc / "net" / "snmp", self._snmp(seconds, faults)
        slower = [kind.port_gigabits for kind, _ in faults if kind.port_gigabits is not None]
        waits = seconds / 100 + sum(kind.port_waits * since for kind, since in faults)
        for port in PORTS:
            folder = sys / "class" / "infiniband" / port / "ports" / "1"
            gigabits = slower[0] if slower and port == PORTS[0] else PORT_GIGABITS
            yield folder / "rate", f"{gigabits} Gb/sec (4X)\n"
            counters = folder / "counters"
            words = f"{PORT_RATE * seconds / 4:.0f}\n"
            yield counters / "port_xmit_wait", f"{PORT_RATE / TICK_BYTES * waits:.0f}\n"
            yield counters / "port_rcv_data", words
            yield counters / "port_xmit_data", words
            yield counters / "symbol_error", f"{dropped}\n"

    def _counts(self, seconds: float, faults: list[tuple[Kind, float]]) -> dict[str, int]:
        return {
            name: int(
                per_second * seconds
                + sum(kind.host_counts.get(name, 0.0) * since for kind, since in faults)
            )
            for name, per_second in HOST_COUNTS.items()
        }

    @staticmethod
    def _snmp(seconds: float, faults: Sequence[tuple[Kind, float]]) -> str:
        sent = DEVICE_RATE * seconds / SEGMENT_BYTES
        again = sent / 10_000 + sum(kind.resent_segments * since for kind, since in faults)
        return f"Tcp: OutSegs RetransSegs\nTcp: {sent:.0f} {again:.0f}\n"

    def _stat(self, seconds: float) -> str:
        user, system, idle = (
            int(share * seconds * TICKS * CPUS_A_NUMA_NODE) for share in (0.3, 0.01, 0.69)
        )
        lines = [f"cpu{cpu} {user} 0 {system} {idle} 0 0 0 0 0 0\n" for cpu in range(NUMA_NODES)]
        return "".join(["cpu  0 0 0 0 0 0 0 0 0 0\n", *lines])

    def _faults(self, at: float) -> Iterator[tuple[Kind, float]]:
        """Yield each kind of fault on this node, and for how long it has been there at *at*."""
        for fault in self._training.phase(at).faults:
            if fault.has(self._node, fault.gpu):
                yield fault.kind, at - fault.begins_seconds

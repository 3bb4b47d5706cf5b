"""The /proc and /sys of a simulated node, as small files for the exporter's own collectors."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from exporter.collectors.node.files import Mounts
from exporter.simulate.faults import Kind
from exporter.simulate.training import RUN_SECONDS, Training

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
SEGMENT_BYTES: Final = 1448
TICK_BYTES: Final = 8


class HostFiles:
    """The files of *node* below *directory*; those that change are written by show()."""

    def __init__(self, directory: Path, training: Training, node: int) -> None:
        self.mounts = Mounts(directory / "proc", directory / "sys")
        self._training = training
        self._node = node
        for path, text in self._lasting():
            _write(path, text)
        self.show(0.0)

    def show(self, at: float) -> None:
        """Write what the files contain at the time *at* of the simulation."""
        for path, text in self._changing(at):
            _write(path, text)

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
        yield proc / "net" / "snmp", self._snmp(seconds, faults)
        sectors = int(DISK_RATE * seconds / SECTOR_BYTES)
        yield proc / "diskstats", f" 259 0 nvme0n1 1 0 {sectors} 1 1 0 {sectors // 8} 1 0 1 1\n"
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
            if fault.has(self._node, 0):
                yield fault.kind, at - fault.begins_seconds


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

"""What a simulated node shows: its GPUs, the processes on them, and files as in /proc and /sys."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from exporter.causes.model import ThreadState
from exporter.cgroups import Cgroup
from exporter.collectors.node.files import Mounts
from exporter.nvml.sample import REASON_BITS, GpuProcess, GpuSample, NodeSample, StuckCall
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import Followed, HostCost, HostWatch, Look
from exporter.processes.process import Process
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.processes.worker_states import WorkerStates
from fleet_simulator.plan import JobPlan
from fleet_simulator.ranks import pid_of
from fleet_simulator.training import RUN_SECONDS, Training

DRIVER: Final = "580.95"
NVML: Final = "13.580"
FOREIGN_PID: Final = 31_337
WORKERS: Final = 8
# Share of quota periods in which a rank uses up its CPU quota, without any fault.
USUALLY_THROTTLED: Final = 0.002
PERIODS_PER_SECOND: Final = 10
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
NFS_MOUNT: Final = (
    "device 10.0.0.5:/data mounted on /data with fstype nfs4 statvers=1.1\n"
    "\tper-op statistics\n\t        READ: {0} {0} 0 0 0 0 {1} {1} 0\n"
)
SEGMENTS_PER_SECOND: Final = DEVICE_RATE / 1448
# A port counts its waits to send in ticks, each the time that eight bytes take.
WAIT_TICKS_PER_SECOND: Final = PORT_RATE / 8
# What a node counts per second without any fault; faults add to it.
HOST_COUNTS: Final = {
    "cpu_pressure_microseconds": 10_000.0,
    "io_pressure_microseconds": 10_000.0,
    "memory_pressure_microseconds": 10_000.0,
    "disk_reads": 320.0,
    "disk_milliseconds": 130.0,
    "disk_busy_milliseconds": 110.0,
    "nfs_operations": 100.0,
    "nfs_milliseconds": 80.0,
    "lustre_operations": 100.0,
    "lustre_milliseconds": 60.0,
    "throttled_milliseconds": 0.0,
    "numa_misses": 0.0,
    "dropped_packets": 0.0,
    "sent_segments": SEGMENTS_PER_SECOND,
    "resent_segments": SEGMENTS_PER_SECOND / 10_000,
    "wait_ticks": WAIT_TICKS_PER_SECOND / 100,
}
# The files are rewritten this often: as often as the fastest collector reads them.
SHOWN_SECONDS: Final = 5.0


class SimulatedNvml:
    """What NVML says of the GPUs of *node*, which run ranks of *training*."""

    worker_up = True
    worker_restarts = 0
    stuck_call: StuckCall | None = None
    released = False

    def __init__(self, training: Training, node: int, unix_start: float) -> None:
        self._training = training
        self._node = node
        self._unix_start = unix_start
        self._latest: NodeSample | None = None

    def advance(self, at: float) -> None:
        """Read the GPUs at the time *at* of the simulation."""
        gpus = tuple(self._gpu(index, at) for index in range(self._training.plan.gpus))
        self._latest = NodeSample(
            self._unix_start + at, len(gpus), DRIVER, NVML, gpus, monotonic_seconds=at
        )

    def latest(self) -> NodeSample | None:
        """Return the newest sample."""
        return self._latest

    def _gpu(self, index: int, at: float) -> GpuSample:
        faults = (f for f in self._training.phase(at).faults if f.has(self._node, index))
        usual = _usual_gpu(self._training.plan, self._node, index, at + RUN_SECONDS)
        changed: dict[str, Any] = {}
        for fault in faults:
            changed |= fault.kind.gpu
            since = at - fault.begins_seconds
            for name, rate in fault.kind.gpu_counts.items():
                changed[name] = _grown(getattr(usual, name), rate, since)
            if fault.kind.foreign_process:
                other = GpuProcess(FOREIGN_PID, 9_000_000_000)
                changed["processes"] = (*(usual.processes or ()), other)
        if changed.get("up") is False:
            lost = GpuSample(usual.index, False, usual.uuid, usual.name, usual.pci_bus_id)
            return replace(lost, xid_source="kmsg", **changed)
        return replace(usual, **changed) if changed else usual


def _grown(usual: Any, rate: Any, seconds: float) -> Any:
    """Return a count, or several by name, *seconds* after it began to grow at *rate* a second."""
    if isinstance(usual, dict):
        return usual | {name: _grown(usual[name], each, seconds) for name, each in rate.items()}
    return usual + int(rate * seconds)


def gpu_uuid(node: int, index: int) -> str:
    """Return the UUID of GPU *index* of *node*."""
    return f"GPU-sim{node:05}-{index:04}-3f6d-11ef-9454-0242ac12{index:04}"


def _usual_gpu(plan: JobPlan, node: int, index: int, running_seconds: float) -> GpuSample:
    # A slow wave, so that lines on a dashboard are not all on top of each other.
    wave = ((running_seconds / 20 + 3 * index) % 10 - 5) / 5
    rank = (node - plan.first_node) * plan.gpus + index
    return GpuSample(
        index=index,
        up=True,
        uuid=gpu_uuid(node, index),
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        gpu_busy_percent=97.0 + wave,
        memory_total_bytes=85_520_809_984,
        memory_used_bytes=int(70e9 + 1e8 * index),
        pcie_transmit_bytes_per_second=1.1e9 + 1e8 * wave,
        pcie_receive_bytes_per_second=2.1e9 + 2e8 * wave,
        pcie_link_generation=5,
        pcie_link_generation_max=5,
        pcie_link_width=16,
        pcie_link_width_max=16,
        pcie_replays=3,
        pcie_errors=2,
        performance_state=0,
        decoder_busy_percent=0.0,
        sm_clock_megahertz=1_950 + int(15 * wave),
        memory_clock_megahertz=2_619,
        throttle_reasons=0,
        throttle_seconds=dict.fromkeys(REASON_BITS, 0.0) | {"sw_power_cap": running_seconds / 200},
        power_milliwatts=640_000 + int(15_000 * wave),
        power_limit_milliwatts=700_000,
        energy_millijoules=int(640_000 * running_seconds),
        gpu_temperature_celsius=58 + index + int(2 * wave),
        memory_temperature_celsius=71 + index + int(2 * wave),
        ecc_corrected_errors=1,
        ecc_uncorrected_errors=0,
        remapped_rows_corrected=1,
        remapped_rows_uncorrected=0,
        row_remap_pending=0,
        row_remap_failed=0,
        recovery_action=0,
        minor_number=index,
        numa_node=2 * index // plan.gpus,
        cpu_affinity=_cpus(plan, index),
        processes=(GpuProcess(pid_of(rank), 70_000_000_000),),
        xid_events=0,
        xid_errors={},
        xid_source="kmsg",
        pcie_source="gpm",
        sm_active_percent=81.0 + 3 * wave,
        sm_occupancy_percent=33.0 + 2 * wave,
        tensor_active_percent=48.0 + 3 * wave,
        dram_active_percent=39.0 + 3 * wave,
        nvlink_links=18,
        nvlink_links_up=18,
        nvlink_transmit_bytes=int(1e13 + 9e10 * running_seconds),
        nvlink_receive_bytes=int(1e13 + 9e10 * running_seconds),
        nvlink_errors={"crc": 0, "replay": 2, "recovery": 0},
        nvlink_link_errors={"11": 2},
    )


def _cpus(plan: JobPlan, index: int) -> tuple[int, ...]:
    first = 48 * (2 * index // plan.gpus)
    return tuple(range(first, first + 48))


def processes(plan: JobPlan, node: int) -> Mapping[int, Process]:
    """Return the processes on the GPUs of *node*: its ranks, and one that is foreign."""
    foreign = Process(FOREIGN_PID, 9, "python", uid=1001, namespace_pid=FOREIGN_PID, environment={})
    first = (node - plan.first_node) * plan.gpus
    ranks = {pid_of(first + gpu): _rank(plan, first + gpu, gpu) for gpu in range(plan.gpus)}
    return ranks | {FOREIGN_PID: foreign}


def _rank(plan: JobPlan, rank: int, gpu: int) -> Process:
    environment = {
        "RANKSKEW_JOB_ID": plan.job_id,
        "RANK": str(rank),
        "LOCAL_RANK": str(gpu),
        "WORLD_SIZE": str(plan.ranks),
        "SLURM_STEP_GPUS": ",".join(map(str, range(plan.gpus))),
        "SLURM_JOB_PARTITION": "train",
        "SLURM_JOB_USER": "someone",
    }
    return Process(
        pid=pid_of(rank),
        start_ticks=1,
        name="python",
        uid=1000,
        namespace_pid=pid_of(rank),
        cpus=frozenset(_cpus(plan, gpu)),
        environment=environment,
        cgroup=Cgroup(slurm_job="4242", slurm_step_id="0"),
    )


class SimulatedHost(HostWatch):
    """What ranks of *training* cost their host; each has eight workers."""

    def __init__(self, training: Training) -> None:
        super().__init__(Path("/proc"), Path("/sys"))
        self._training = training
        self._to_show: Sequence[Followed] = ()
        self.at = 0.0

    def follow(self, ranks: Sequence[Followed]) -> None:
        """Show these ranks."""
        self._to_show = ranks

    def latest(self) -> Look:
        """Return what the ranks have cost up to the time *at* of the simulation."""
        costs = {each.who: self._cost(int(each.who[2])) for each in self._to_show}
        return Look(costs, left_out=0, seconds=self.at)

    def _cost(self, rank: int) -> HostCost:
        seconds = self.at + RUN_SECONDS
        faults = self._training.phase(self.at).faults_of(rank)

        def grown(name: str, per_second: float) -> int:
            more = (f.kind.costs.get(name, 0.0) * (self.at - f.begins_seconds) for f in faults)
            return int(per_second * seconds + sum(more))

        used = Cost(
            cpu_ticks=grown("cpu_ticks", TICKS_PER_SECOND),
            workers_cpu_ticks=grown("workers_cpu_ticks", 3 * TICKS_PER_SECOND),
            run_queue_nanoseconds=grown("run_queue_nanoseconds", NANOSECONDS / 200),
            workers_run_queue_nanoseconds=grown("workers_run_queue_nanoseconds", NANOSECONDS / 50),
            major_faults=grown("major_faults", 0.1),
            read_bytes=grown("read_bytes", 1e6),
            workers=WORKERS,
            saturated_workers=sum(fault.kind.saturated_workers for fault in faults),
            running_nanoseconds=grown("running_nanoseconds", NANOSECONDS / 3),
        )
        throttled = sum(f.kind.quota_throttled * (self.at - f.begins_seconds) for f in faults)
        throttled += USUALLY_THROTTLED * seconds
        quota = Throttling(int(PERIODS_PER_SECOND * seconds), int(PERIODS_PER_SECOND * throttled))
        pressure = {"cpu": seconds / 50, "io": seconds / 100, "memory": seconds / 500}
        return HostCost(used, CgroupCost(quota, pressure))


class SimulatedWorkers(WorkerStates):
    """What the loader's workers of late ranks of *training* do."""

    def __init__(self, training: Training) -> None:
        super().__init__(Path("/proc"))
        self._training = training
        self.at = 0.0

    def of(self, job_id: str, rank: int) -> Sequence[ThreadState]:
        """Return what the busiest worker does at the time *at* of the simulation."""
        return [
            ThreadState("data", fault.kind.worker_state, 0.96, fault.kind.line)
            for fault in self._training.phase(self.at).faults_of(rank)
            if fault.kind.worker_state
        ]


class HostFiles:
    """The files of *node* below *directory*; show() writes those that change.

    Writing small files is most of a simulation's cost, so each is written only as often as needed.
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
        faults = [
            (fault.kind, at - fault.begins_seconds)
            for fault in self._training.phase(at).faults
            if fault.has(self._node, fault.gpu)
        ]
        count = {
            name: int(rate * seconds + sum(k.host_counts.get(name, 0.0) * t for k, t in faults))
            for name, rate in HOST_COUNTS.items()
        }
        shares = (0.3, 0.0, 0.01, 0.69)  # In user code, at low priority, in the kernel, idle.
        ticks = " ".join(str(int(share * seconds * TICKS * CPUS_A_NUMA_NODE)) for share in shares)
        cpus = "".join(f"cpu{cpu} {ticks} 0 0 0 0 0 0\n" for cpu in range(NUMA_NODES))
        yield proc / "stat", f"cpu  0 0 0 0 0 0 0 0 0 0\n{cpus}"
        for resource in ("cpu", "io", "memory"):
            some = count[f"{resource}_pressure_microseconds"]
            averages = "avg10=0.00 avg60=0.00 avg300=0.00"
            text = f"some {averages} total={some}\nfull {averages} total={some // 4}\n"
            yield proc / "pressure" / resource, text
        # Bytes, packets, errs, drop, fifo, frame, compressed, multicast.
        device = f"{DEVICE_RATE * seconds:.0f} 1 0 {count['dropped_packets']} 0 0 0 0"
        yield proc / "net" / "dev", f"Inter-|\n face |\n  eth0: {device} {device}\n"
        segments = f"{count['sent_segments']} {count['resent_segments']}"
        yield proc / "net" / "snmp", f"Tcp: OutSegs RetransSegs\nTcp: {segments}\n"
        sectors = int(DISK_RATE * seconds / SECTOR_BYTES)
        reads = f"{count['disk_reads']} 0 {sectors} {count['disk_milliseconds']}"
        busy = count["disk_busy_milliseconds"]
        yield proc / "diskstats", f" 259 0 nvme0n1 {reads} 1 0 {sectors // 8} 1 0 {busy} 1\n"
        nfs = NFS_MOUNT.format(count["nfs_operations"], count["nfs_milliseconds"])
        yield proc / "1" / "mountstats", nfs
        lustre = (
            f"{count['lustre_operations']} samples [usec] 1 1 {count['lustre_milliseconds']}000"
        )
        yield proc / "fs/lustre/llite/scratch-ffff0000/stats", f"read {lustre} 1\n"
        yield proc / "vmstat", f"oom_kill {sum(kind.oom_kills for kind, _ in faults)}\n"
        system = sys / "devices" / "system"
        yield system / "node" / "node0" / "numastat", f"numa_miss {count['numa_misses']}\n"
        clock = int(CLOCK_KILOHERTZ * min((kind.cpu_clock for kind, _ in faults), default=1.0))
        throttled = f"{count['throttled_milliseconds']}\n"
        for number in range(NUMA_NODES):
            cpu = system / "cpu" / f"cpu{number}"
            yield cpu / "cpufreq" / "scaling_cur_freq", f"{clock}\n"
            yield cpu / "thermal_throttle" / "package_throttle_total_time_ms", throttled
        slower = [kind.port_gigabits for kind, _ in faults if kind.port_gigabits is not None]
        words = f"{PORT_RATE * seconds / 4:.0f}\n"
        for port in PORTS:
            folder = sys / "class" / "infiniband" / port / "ports" / "1"
            gigabits = slower[0] if slower and port == PORTS[0] else PORT_GIGABITS
            yield folder / "rate", f"{gigabits} Gb/sec (4X)\n"
            yield folder / "counters" / "port_xmit_wait", f"{count['wait_ticks']}\n"
            yield folder / "counters" / "port_rcv_data", words
            yield folder / "counters" / "port_xmit_data", words
            yield folder / "counters" / "symbol_error", f"{count['dropped_packets']}\n"

"""The GPUs of a simulated node, the processes on them, and what these cost their host."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from exporter.causes.model import ThreadState
from exporter.cgroups import Cgroup
from exporter.nvml.sample import REASON_BITS, GpuProcess, GpuSample, NodeSample, StuckCall
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import Followed, HostCost, HostWatch, Look
from exporter.processes.process import Process
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.processes.worker_states import LateRankProcess
from fleet_simulator.faults import PlantedFault
from fleet_simulator.plan import JobPlan
from fleet_simulator.ranks import pid_of
from fleet_simulator.training import RUN_SECONDS, Training

DRIVER: Final = "580.95"
NVML: Final = "13.580"
FOREIGN_PID: Final = 31_337
WORKERS: Final = 8
# The share of the periods of its CPU quota in which a rank uses it up without any fault.
USUALLY_THROTTLED: Final = 0.002
PERIODS_PER_SECOND: Final = 10


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
        faults = _faults_at(self._training, self._node, index, at)
        usual = _usual_gpu(self._training.plan, self._node, index, at + RUN_SECONDS)
        changed: dict[str, Any] = {}
        for fault in faults:
            changed |= fault.kind.gpu
            for name, per_second in fault.kind.gpu_counts.items():
                changed[name] = _grown(getattr(usual, name), per_second, at - fault.begins_seconds)
            if fault.kind.throttled_for:
                seconds = dict(usual.throttle_seconds or {})
                seconds[fault.kind.throttled_for] += 0.8 * (at - fault.begins_seconds)
                changed["throttle_seconds"] = seconds
            if fault.kind.foreign_process:
                other = GpuProcess(FOREIGN_PID, 9_000_000_000)
                changed["processes"] = (*(usual.processes or ()), other)
        if changed.get("up") is False:
            lost = GpuSample(usual.index, False, usual.uuid, usual.name, usual.pci_bus_id)
            return replace(lost, xid_source="kmsg", **changed)
        return replace(usual, **changed) if changed else usual


def _grown(usual: Any, per_second: float, seconds: float) -> Any:
    """Return a count, or several by name, *seconds* after it has begun to grow."""
    if isinstance(usual, dict):
        return {name: _grown(count, per_second, seconds) for name, count in usual.items()}
    return usual + int(per_second * seconds)


def gpu_uuid(node: int, index: int) -> str:
    """Return the UUID of GPU *index* of *node*."""
    return f"GPU-sim{node:05}-{index:04}-3f6d-11ef-9454-0242ac12{index:04}"


def _faults_at(training: Training, node: int, gpu: int, at: float) -> list[PlantedFault]:
    return [fault for fault in training.phase(at).faults if fault.has(node, gpu)]


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
        sm_clock_max_megahertz=1_980,
        memory_clock_megahertz=2_619,
        memory_clock_max_megahertz=2_619,
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
        cgroup=Cgroup(slurm_job_id="4242", slurm_step_id="0"),
    )


class SimulatedHost(HostWatch):
    """What the ranks of *training* on *node* cost their host; each has eight workers."""

    def __init__(self, training: Training, node: int) -> None:
        super().__init__(Path("/proc"), Path("/sys"))
        self._training = training
        self._node = node
        self._to_show: Sequence[Followed] = ()
        self.at = 0.0

    def follow(self, ranks: Sequence[Followed]) -> None:
        """Show these ranks."""
        self._to_show = ranks

    def latest(self) -> Look:
        """Return what they have cost at the time *at* of the simulation."""
        costs = {each.who: self._cost(int(each.who[2])) for each in self._to_show}
        return Look(costs, left_out=0, seconds=self.at)

    def _cost(self, rank: int) -> HostCost:
        seconds = self.at + RUN_SECONDS
        faults = _faults_at(self._training, *self._training.plan.place(rank), self.at)

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


class SimulatedWorkers:
    """What the loader's workers of late ranks on *node* do."""

    def __init__(self, training: Training, node: int) -> None:
        self._training = training
        self._node = node
        self.at = 0.0

    def follow(self, ranks: Sequence[LateRankProcess]) -> None:
        """Look at nothing."""

    def of(self, job_id: str, rank: int) -> Sequence[ThreadState]:
        """Return what the busiest of them does at the time *at* of the simulation."""
        faults = _faults_at(self._training, *self._training.plan.place(rank), self.at)
        return [
            ThreadState("data", fault.kind.worker_state, 0.96, fault.kind.line)
            for fault in faults
            if fault.kind.worker_state
        ]

    def pid(self, job_id: str, rank: int) -> int | None:
        """Return none: nothing of the simulation can be looked into."""
        return None

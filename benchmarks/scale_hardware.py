"""The hardware of simulated nodes: eight GPUs, and the processes of ranks that Slurm started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.scale_job import RANKS_PER_NODE
from exporter.cgroups import Cgroup
from exporter.nvml.sample import GpuProcess, GpuSample, NodeSample
from exporter.nvml.throttle_reasons import REASON_BITS
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import Followed, HostCost, HostWatch, Look
from exporter.processes.process import Process
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost

# Marks that each node replaces with its own: the node's name, and the numbers of its ranks.
NODE: Final = "@node@"
FIRST_RANK: Final = 700_000


class SimulatedNvml:
    """Eight GPUs; a *high* sample is above a low one in everything that changes."""

    worker_up = True
    worker_restarts = 0
    stuck_call = None
    released = False

    def __init__(self, high: bool) -> None:
        self._high = high

    def latest(self) -> NodeSample:
        """Return the sample."""
        gpus = tuple(_gpu(index, self._high) for index in range(RANKS_PER_NODE))
        return NodeSample(1.0, RANKS_PER_NODE, "580.95", "13.580", gpus)


def _gpu(index: int, high: bool) -> GpuSample:
    more = int(high)
    others = [str(other) for other in range(RANKS_PER_NODE) if other != index]
    return GpuSample(
        index=index,
        up=True,
        uuid=f"GPU-{NODE}-{index}",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        gpu_busy_percent=97.0 + 2 * more,
        gpu_busy_min_percent=91.0 + 3 * more,
        memory_busy_percent=44.0 + 4 * more,
        memory_total_bytes=85_520_809_984,
        memory_used_bytes=70_000_000_000 + 10_000_000 * more,
        pcie_transmit_bytes_per_second=1.1e9 + 2e8 * more,
        pcie_receive_bytes_per_second=2.1e9 + 3e8 * more,
        pcie_link_generation=5,
        pcie_link_generation_max=5,
        pcie_link_width=16,
        pcie_link_width_max=16,
        pcie_replays=3,
        sm_clock_megahertz=1_950 + 30 * more,
        sm_clock_max_megahertz=1_980,
        memory_clock_megahertz=2_619,
        memory_clock_max_megahertz=2_619,
        throttle_reasons=0,
        throttle_seconds=dict.fromkeys(REASON_BITS, 0.0) | {"sw_power_cap": 3.0 + 0.05 * more},
        power_milliwatts=640_000 + 20_000 * more,
        power_limit_milliwatts=700_000,
        energy_millijoules=10_000_000_000 + 650_000 * more,
        gpu_temperature_celsius=58 + 3 * more,
        memory_temperature_celsius=71 + 3 * more,
        temperature_margin_celsius=26 + 3 * more,
        ecc_corrected_errors=1,
        ecc_uncorrected_errors=0,
        remapped_rows_corrected=1,
        remapped_rows_uncorrected=0,
        row_remap_pending=0,
        row_remap_failed=0,
        recovery_action=0,
        minor_number=index,
        numa_node=index // 4,
        cpu_affinity=_cpus(index),
        topology=dict.fromkeys(others, "system"),
        processes=(GpuProcess(pid(index), 70_000_000_000),),
        xid_events=0,
        xid_errors={},
        xid_source="kmsg",
        pcie_source="gpm",
        sm_active_percent=81.0 + 4 * more,
        sm_occupancy_percent=33.0 + 3 * more,
        tensor_active_percent=48.0 + 4 * more,
        dram_active_percent=39.0 + 4 * more,
        nvlink_links=18,
        nvlink_links_up=18,
        nvlink_speed_min_megabytes_per_second=26_562,
        nvlink_transmit_bytes=10**13 + 10**11 * more,
        nvlink_receive_bytes=10**13 + 10**11 * more,
        nvlink_errors={"crc": 0, "replay": 0, "recovery": 0},
    )


class SimulatedHost(HostWatch):
    """What ranks with eight workers each cost their host, in a cgroup with a CPU quota."""

    def __init__(self, high: bool) -> None:
        super().__init__(Path("/proc"), Path("/sys"))
        self._high = high
        self._to_show: Sequence[Followed] = ()

    def follow(self, ranks: Sequence[Followed]) -> None:
        """Show these ranks."""
        self._to_show = ranks

    def latest(self) -> Look:
        """Return what they cost."""
        cost = _host_cost(self._high)
        return Look({each.who: cost for each in self._to_show}, left_out=0)


def _host_cost(high: bool) -> HostCost:
    more = int(high)
    used = Cost(
        cpu_ticks=10_000 + TICKS_PER_SECOND * more,
        workers_cpu_ticks=40_000 + 4 * TICKS_PER_SECOND * more,
        run_queue_nanoseconds=(10 + more) * NANOSECONDS // 100,
        workers_run_queue_nanoseconds=(40 + more) * NANOSECONDS // 100,
        involuntary_switches=20_000 + 20 * more,
        major_faults=300 + more,
        read_bytes=10**10 + 10**7 * more,
        written_bytes=10**9 + 10**6 * more,
        workers=8,
        saturated_workers=more,
    )
    throttling = Throttling(10_000 + 10 * more, 12 + more, 2.0 + more / 10)
    pressure = {"cpu": 5.0 + more / 20, "io": 2.0 + more / 50, "memory": more / 99}
    return HostCost(used, CgroupCost(throttling, pressure))


def pid(index: int) -> int:
    """Return the process id of the rank on GPU *index*."""
    return 4_000 + index


def _cpus(index: int) -> tuple[int, ...]:
    first = 48 * (index // 4)
    return tuple(range(first, first + 48))


def process(index: int) -> Process:
    """Return the process of the rank on GPU *index*, as Slurm starts one."""
    environment = {
        "RANK": str(FIRST_RANK + index),
        "LOCAL_RANK": str(index),
        "SLURM_JOB_PARTITION": "train",
        "SLURM_JOB_USER": "someone",
    }
    return Process(
        pid=pid(index),
        start_ticks=1,
        name="python",
        uid=1000,
        namespace_pid=pid(index),
        cpus=frozenset(_cpus(index)),
        environment=environment,
        cgroup=Cgroup(slurm_job_id="4242", slurm_step_id="0"),
    )

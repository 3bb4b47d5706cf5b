"""Every collector of the exporter, one line each in COLLECTORS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter.collectors.base import Collector
from exporter.collectors.exporter_self import ExporterSelfCollector
from exporter.collectors.gpu.devices import GpuDevicesCollector, GpuProcessesCollector
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.collectors.gpu.mig import GpuMigCollector
from exporter.collectors.gpu.readings import GpuReadingsCollector
from exporter.collectors.node.cpu import NodeCpuClockCollector, NodeCpuCollector
from exporter.collectors.node.disk import NodeDiskCollector
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.infiniband import NodeInfinibandCollector
from exporter.collectors.node.memory import NodeMemoryCollector
from exporter.collectors.node.mounts import NodeMountsCollector
from exporter.collectors.node.network import NodeNetworkCollector
from exporter.collectors.node.pressure import NodePressureCollector
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.collectors.rank.host import RankHostCollector
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_causes import LateCausesCollector
from exporter.collectors.rank.late_ranks import LateLinesCollector, LateRanksCollector
from exporter.collectors.rank.ranks import (
    RankEventsCollector,
    RankResourcesCollector,
    RanksCollector,
)
from exporter.collectors.rank.work import RankWorkCollector
from exporter.errors import Failures
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses
from exporter.ingest.app import IngestCounts
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import NvmlSource
from exporter.processes.host_watch import HostWatch
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.settings import Settings
from exporter.vocabulary.thresholds import Thresholds
from exporter.web.reload import WatchedConfig


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that collectors read from; each takes what it needs."""

    settings: Settings
    ranks: RankStore
    ingest: IngestCounts
    nvml: NvmlSource
    expected_gpus: ExpectedGpus = field(default_factory=ExpectedGpus)
    # ProcessWatch.processes; by default there are none.
    processes: Callable[[], Mapping[int, Process]] = dict
    # By default it knows no rank.
    jobs: NodeJobs = field(default_factory=lambda: NodeJobs(RankStore()))
    causes: LateCauses = field(default_factory=LateCauses)
    changes: ChangeCauses = field(default_factory=ChangeCauses)
    # By default one that never looks.
    host: HostWatch = field(default_factory=lambda: HostWatch(Path("/proc"), Path("/sys")))
    node_name: str = ""
    web_config: WatchedConfig | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    failures: Failures = field(default_factory=Failures)
    join: RankJoin = field(init=False)

    def __post_init__(self) -> None:
        # One for all, so that the ranks are joined with their GPUs once.
        object.__setattr__(self, "join", RankJoin(self.nvml, self.processes, self.ranks))


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One collector: *name* is its switch and its label, *make* constructs it."""

    name: str
    help: str
    make: Callable[[Sources], Collector]
    needs_nvml: bool = False


def _ranks(name: str, help: str, make: Callable[[RankStore], Collector]) -> CatalogEntry:
    return CatalogEntry(name, help, lambda sources: make(sources.ranks))


def _gpu(name: str, help: str) -> CatalogEntry:
    return CatalogEntry(name, help, lambda s: GpuReadingsCollector(name, s.nvml), needs_nvml=True)


def _node(name: str, help: str, make: Callable[[Mounts], Collector]) -> CatalogEntry:
    return CatalogEntry(name, help, lambda sources: make(_mounts(sources)))


def _mounts(sources: Sources) -> Mounts:
    return Mounts(Path(sources.settings.path_procfs), Path(sources.settings.path_sysfs))


def _joined(name: str, help: str, make: Callable[[RankJoin], Collector]) -> CatalogEntry:
    return CatalogEntry(name, help, lambda sources: make(sources.join), needs_nvml=True)


COLLECTORS: Final = (
    _ranks("ranks", "Steps and stages that the training ranks report.", RanksCollector),
    _ranks(
        "rank_resources", "Samples, tokens, memory and pauses of the ranks.", RankResourcesCollector
    ),
    _ranks(
        "rank_work",
        "Work, input, checkpoints and versions of the ranks, for the node as a whole.",
        RankWorkCollector,
    ),
    _ranks("rank_events", "The last event in the life of each rank.", RankEventsCollector),
    CatalogEntry(
        "jobs",
        "The verdict on each job, and its ranks on this node.",
        lambda s: JobsCollector(s.jobs, why_slower=s.changes.of),
    ),
    CatalogEntry(
        "late_ranks",
        "The late ranks and their cost.",
        lambda s: LateRanksCollector(s.jobs, s.node_name),
    ),
    CatalogEntry(
        "late_causes", "Why the late ranks are late.", lambda s: LateCausesCollector(s.causes)
    ),
    _ranks(
        "late_lines",
        "The line of code in which the late ranks spend their time.",
        LateLinesCollector,
    ),
    _joined("rank_gpus", "The GPU, CPUs, pod and Slurm job of the ranks.", RankGpusCollector),
    CatalogEntry(
        "rank_host",
        "CPU, faults and I/O of the ranks and their workers.",
        lambda s: RankHostCollector(s.join, s.ranks, s.host),
        needs_nvml=True,
    ),
    CatalogEntry(
        "gpu_devices",
        "Which GPUs the node has and which of them answer.",
        lambda s: GpuDevicesCollector(s.nvml, s.expected_gpus),
        needs_nvml=True,
    ),
    CatalogEntry(
        "gpu_faults",
        "What is wrong with the GPUs.",
        lambda s: GpuFaultsCollector(
            s.join, s.ranks, s.nvml, s.expected_gpus, s.thresholds, s.node_name
        ),
        needs_nvml=True,
    ),
    _gpu("gpu_utilization", "How busy the GPUs are."),
    _gpu("gpu_memory", "Memory of the GPUs."),
    _gpu("gpu_activity", "Activity of the GPUs' SMs, tensor cores and memory."),
    _gpu("gpu_pcie", "Throughput and state of the GPUs' PCIe links."),
    _gpu("gpu_nvlink", "Throughput, errors and state of the GPUs' NVLinks."),
    _gpu("gpu_clocks", "Clocks of the GPUs."),
    _gpu("gpu_throttle", "Why the GPUs' clocks are throttled."),
    _gpu("gpu_power", "Power and energy of the GPUs."),
    _gpu("gpu_temperature", "Temperatures of the GPUs."),
    _gpu("gpu_ecc", "Errors of the GPUs' memories."),
    _gpu("gpu_remapped_rows", "Replaced rows of the GPUs' memories."),
    _gpu("gpu_xid", "XID errors of the GPUs."),
    CatalogEntry(
        "gpu_mig",
        "MIG devices of the GPUs and their memory.",
        lambda s: GpuMigCollector(s.nvml),
        needs_nvml=True,
    ),
    _gpu("gpu_recovery", "Recovery actions that the driver advises."),
    _joined("gpu_processes", "Foreign processes on the GPUs.", GpuProcessesCollector),
    _node("node_cpu", "CPU time by mode and NUMA node.", NodeCpuCollector),
    _node("node_cpu_clock", "Clock and throttling of the node's CPUs.", NodeCpuClockCollector),
    _node("node_pressure", "How long tasks wait for CPU, memory, I/O.", NodePressureCollector),
    _node("node_memory", "Memory of the node, misplaced pages, OOM kills.", NodeMemoryCollector),
    CatalogEntry(
        "node_network",
        "The node's network devices, and TCP.",
        lambda s: NodeNetworkCollector(_mounts(s), s.settings.node_network_device_exclude),
    ),
    _node("node_infiniband", "The node's InfiniBand and RoCE ports.", NodeInfinibandCollector),
    CatalogEntry(
        "node_disk",
        "Bytes of the node's disks; the busiest of them.",
        lambda s: NodeDiskCollector(_mounts(s), s.settings.node_disk_device_exclude),
    ),
    _node("node_mounts", "Operations on NFS and Lustre, and their time.", NodeMountsCollector),
    CatalogEntry(
        "exporter_self",
        "The exporter's version, ingest and process.",
        lambda s: ExporterSelfCollector(s.ingest, s.failures, s.node_name, s.web_config),
    ),
)


def collectors(sources: Sources) -> list[Collector]:
    """Return the collectors that the settings leave on."""
    return [entry.make(sources) for entry in enabled(sources.settings)]


def enabled(settings: Settings) -> list[CatalogEntry]:
    """Return the collectors that the settings leave on."""
    return [entry for entry in COLLECTORS if entry.name not in settings.collectors_off]

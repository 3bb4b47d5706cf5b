"""Every collector of the exporter: one file each, one line each in COLLECTORS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter.collectors.base import Collector
from exporter.collectors.exporter_self import ExporterSelfCollector, Reloads
from exporter.collectors.gpu.activity import GpuActivityCollector
from exporter.collectors.gpu.clocks import GpuClocksCollector
from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.collectors.gpu.ecc import GpuEccCollector
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.collectors.gpu.memory import GpuMemoryCollector
from exporter.collectors.gpu.mig import GpuMigCollector
from exporter.collectors.gpu.nvlink import GpuNvlinkCollector
from exporter.collectors.gpu.pcie import GpuPcieCollector
from exporter.collectors.gpu.power import GpuPowerCollector
from exporter.collectors.gpu.processes import GpuProcessesCollector
from exporter.collectors.gpu.recovery import GpuRecoveryCollector
from exporter.collectors.gpu.remapped_rows import GpuRemappedRowsCollector
from exporter.collectors.gpu.temperature import GpuTemperatureCollector
from exporter.collectors.gpu.throttle import GpuThrottleCollector
from exporter.collectors.gpu.utilization import GpuUtilizationCollector
from exporter.collectors.gpu.xid import GpuXidCollector
from exporter.collectors.node.cpu import NodeCpuCollector
from exporter.collectors.node.cpu_clock import NodeCpuClockCollector
from exporter.collectors.node.disk import NodeDiskCollector
from exporter.collectors.node.files import Mounts
from exporter.collectors.node.infiniband import NodeInfinibandCollector
from exporter.collectors.node.memory import NodeMemoryCollector
from exporter.collectors.node.mounts import NodeMountsCollector
from exporter.collectors.node.network import NodeNetworkCollector
from exporter.collectors.node.pressure import NodePressureCollector
from exporter.collectors.rank.audits import AuditsCollector
from exporter.collectors.rank.events import RankEventsCollector
from exporter.collectors.rank.gpus import RankGpusCollector
from exporter.collectors.rank.host import RankHostCollector
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_causes import LateCausesCollector
from exporter.collectors.rank.late_lines import LateLinesCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.nccl import RankNcclCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.collectors.rank.resources import RankResourcesCollector
from exporter.collectors.rank.work import RankWorkCollector
from exporter.events.file import EventsFile
from exporter.evidence.late_causes import LateCauses
from exporter.ingest.app import IngestCounts
from exporter.nccl_inspector.watch import InspectorWatch
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import NvmlSource
from exporter.processes.host_watch import HostWatch
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.audits import Audits
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.settings import Settings
from exporter.vocabulary.thresholds import Thresholds


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
    audits: Audits = field(default_factory=Audits)
    # By default one that never looks.
    host: HostWatch = field(default_factory=lambda: HostWatch(Path("/proc"), Path("/sys")))
    events: EventsFile | None = None
    inspector: InspectorWatch | None = None
    node_name: str = ""
    web_config: Reloads | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True)
class Entry:
    """One collector: *name* is its switch and its label, *make* may raise NotAvailable."""

    name: str
    help: str
    make: Callable[[Sources], Collector]
    needs_nvml: bool = False


def _gpu(name: str, help: str, make: Callable[[NvmlSource], Collector]) -> Entry:
    return Entry(name, help, lambda sources: make(sources.nvml), needs_nvml=True)


def _node(name: str, help: str, make: Callable[[Mounts], Collector]) -> Entry:
    return Entry(name, help, lambda sources: make(_mounts(sources)))


def _mounts(sources: Sources) -> Mounts:
    return Mounts(Path(sources.settings.path_procfs), Path(sources.settings.path_sysfs))


def _joined(name: str, help: str, make: Callable[[RankJoin], Collector]) -> Entry:
    return Entry(name, help, lambda sources: make(_join(sources)), needs_nvml=True)


def _join(sources: Sources) -> RankJoin:
    return RankJoin(sources.nvml, sources.processes, sources.ranks)


def _rank_host(sources: Sources) -> Collector:
    return RankHostCollector(_join(sources), sources.ranks, sources.host)


def _gpu_devices(sources: Sources) -> Collector:
    return GpuDevicesCollector(sources.nvml, sources.expected_gpus)


def _gpu_faults(sources: Sources) -> Collector:
    return GpuFaultsCollector(
        _join(sources),
        sources.ranks,
        sources.nvml,
        sources.expected_gpus,
        sources.thresholds,
        sources.node_name,
    )


def _node_network(sources: Sources) -> Collector:
    return NodeNetworkCollector(_mounts(sources), sources.settings.node_network_device_exclude)


def _node_disk(sources: Sources) -> Collector:
    return NodeDiskCollector(_mounts(sources), sources.settings.node_disk_device_exclude)


def _exporter_self(sources: Sources) -> Collector:
    return ExporterSelfCollector(
        sources.ingest, sources.events, sources.node_name, sources.web_config
    )


COLLECTORS: Final = (
    Entry(
        "ranks",
        "Steps and stages that the training ranks report.",
        lambda s: RanksCollector(s.ranks),
    ),
    Entry(
        "rank_resources",
        "Samples, tokens, memory and pauses of the ranks.",
        lambda s: RankResourcesCollector(s.ranks),
    ),
    Entry(
        "rank_work",
        "Work, input, checkpoints and versions of the ranks, for the node as a whole.",
        lambda s: RankWorkCollector(s.ranks, s.thresholds),
    ),
    Entry(
        "rank_events",
        "The last event in the life of each rank.",
        lambda s: RankEventsCollector(s.ranks),
    ),
    Entry(
        "jobs",
        "The verdict on each job, and its ranks on this node.",
        lambda s: JobsCollector(s.jobs),
    ),
    Entry(
        "late_ranks",
        "The late ranks and their cost.",
        lambda s: LateRanksCollector(s.jobs, s.node_name),
    ),
    Entry("late_causes", "Why the late ranks are late.", lambda s: LateCausesCollector(s.causes)),
    Entry(
        "late_lines",
        "The line of code in which the late ranks spend their time.",
        lambda s: LateLinesCollector(s.ranks),
    ),
    Entry(
        "audits",
        "What the last audit of each job found.",
        lambda s: AuditsCollector(s.audits),
    ),
    _joined("rank_gpus", "The GPU, CPUs, pod and Slurm job of the ranks.", RankGpusCollector),
    Entry(
        "rank_host",
        "CPU, faults and I/O of the ranks and their workers.",
        _rank_host,
        needs_nvml=True,
    ),
    Entry(
        "rank_nccl",
        "Bus bandwidth of the ranks, as NCCL Inspector measured it.",
        lambda s: RankNcclCollector(s.ranks, s.inspector),
    ),
    Entry(
        "gpu_devices",
        "Which GPUs the node has and which of them answer.",
        _gpu_devices,
        needs_nvml=True,
    ),
    Entry("gpu_faults", "What is wrong with the GPUs.", _gpu_faults, needs_nvml=True),
    _gpu("gpu_utilization", "How busy the GPUs and their memory are.", GpuUtilizationCollector),
    _gpu("gpu_memory", "Memory of the GPUs.", GpuMemoryCollector),
    _gpu(
        "gpu_activity", "Activity of the GPUs' SMs, tensor cores and memory.", GpuActivityCollector
    ),
    _gpu("gpu_pcie", "Throughput and state of the GPUs' PCIe links.", GpuPcieCollector),
    _gpu("gpu_nvlink", "Throughput, errors and state of the GPUs' NVLinks.", GpuNvlinkCollector),
    _gpu("gpu_clocks", "Clocks of the GPUs.", GpuClocksCollector),
    _gpu("gpu_throttle", "Why the GPUs' clocks are throttled.", GpuThrottleCollector),
    _gpu("gpu_power", "Power and energy of the GPUs.", GpuPowerCollector),
    _gpu("gpu_temperature", "Temperatures of the GPUs.", GpuTemperatureCollector),
    _gpu("gpu_ecc", "Errors of the GPUs' memories.", GpuEccCollector),
    _gpu("gpu_remapped_rows", "Replaced rows of the GPUs' memories.", GpuRemappedRowsCollector),
    _gpu("gpu_xid", "XID errors of the GPUs.", GpuXidCollector),
    _gpu("gpu_mig", "MIG devices of the GPUs and their memory.", GpuMigCollector),
    _gpu("gpu_recovery", "Recovery actions that the driver advises.", GpuRecoveryCollector),
    _joined("gpu_processes", "Processes on the GPUs, and foreign ones.", GpuProcessesCollector),
    _node("node_cpu", "CPU time by mode and NUMA node.", NodeCpuCollector),
    _node("node_cpu_clock", "Clock and throttling of the node's CPUs.", NodeCpuClockCollector),
    _node("node_pressure", "How long tasks wait for CPU, memory, I/O.", NodePressureCollector),
    _node("node_memory", "Memory of the node, misplaced pages, OOM kills.", NodeMemoryCollector),
    Entry("node_network", "The node's network devices, and TCP.", _node_network),
    _node("node_infiniband", "The node's InfiniBand and RoCE ports.", NodeInfinibandCollector),
    Entry("node_disk", "Bytes of the node's disks; the busiest of them.", _node_disk),
    _node("node_mounts", "Operations on NFS and Lustre, and their time.", NodeMountsCollector),
    Entry("exporter_self", "The exporter's version, ingest and process.", _exporter_self),
)


def makers(sources: Sources) -> dict[str, Callable[[], Collector]]:
    """Return a constructor for each collector that the settings leave on."""

    def maker(entry: Entry) -> Callable[[], Collector]:
        return lambda: entry.make(sources)

    return {entry.name: maker(entry) for entry in enabled(sources.settings)}


def enabled(settings: Settings) -> list[Entry]:
    """Return the collectors that the settings leave on."""
    return [entry for entry in COLLECTORS if entry.name not in settings.collectors_off]

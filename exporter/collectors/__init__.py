"""Every collector of the exporter: one file each, one line each in COLLECTORS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from exporter.collectors.base import Collector
from exporter.collectors.exporter_self import ExporterSelfCollector
from exporter.collectors.gpu_clocks import GpuClocksCollector
from exporter.collectors.gpu_devices import GpuDevicesCollector
from exporter.collectors.gpu_memory import GpuMemoryCollector
from exporter.collectors.gpu_pcie import GpuPcieCollector
from exporter.collectors.gpu_power import GpuPowerCollector
from exporter.collectors.gpu_temperature import GpuTemperatureCollector
from exporter.collectors.gpu_throttle import GpuThrottleCollector
from exporter.collectors.gpu_utilization import GpuUtilizationCollector
from exporter.collectors.node_cpu import NodeCpuCollector
from exporter.collectors.node_disk import NodeDiskCollector
from exporter.collectors.node_memory import NodeMemoryCollector
from exporter.collectors.node_network import NodeNetworkCollector
from exporter.collectors.rank_resources import RankResourcesCollector
from exporter.collectors.ranks import RanksCollector
from exporter.nvml.sample import NvmlSource
from exporter.ranks import RankStore
from exporter.settings import Settings


@dataclass(frozen=True, slots=True)
class Sources:
    """What collectors read from; each takes what it needs."""

    settings: Settings
    ranks: RankStore
    ingest_results: Mapping[str, int]
    nvml: NvmlSource


@dataclass(frozen=True, slots=True)
class Entry:
    """One collector: *name* is its switch and its label, *make* may raise NotAvailable."""

    name: str
    help: str
    make: Callable[[Sources], Collector]
    needs_nvml: bool = False


def _gpu(name: str, help: str, make: Callable[[NvmlSource], Collector]) -> Entry:
    return Entry(name, help, lambda sources: make(sources.nvml), needs_nvml=True)


def _node_network(sources: Sources) -> Collector:
    return NodeNetworkCollector(sources.settings.node_network_device_exclude)


def _node_disk(sources: Sources) -> Collector:
    return NodeDiskCollector(sources.settings.node_disk_device_exclude)


def _exporter_self(sources: Sources) -> Collector:
    return ExporterSelfCollector(sources.ingest_results)


COLLECTORS: Final = (
    Entry("ranks", "What the training ranks report.", lambda s: RanksCollector(s.ranks)),
    Entry(
        "rank_resources",
        "What the ranks work on, their memory and pauses.",
        lambda s: RankResourcesCollector(s.ranks),
    ),
    _gpu("gpu_devices", "Which GPUs there are and which answer.", GpuDevicesCollector),
    _gpu("gpu_utilization", "How busy the GPUs and their memory are.", GpuUtilizationCollector),
    _gpu("gpu_memory", "Memory of the GPUs.", GpuMemoryCollector),
    _gpu("gpu_pcie", "Throughput and state of the GPUs' PCIe links.", GpuPcieCollector),
    _gpu("gpu_clocks", "Clocks of the GPUs.", GpuClocksCollector),
    _gpu("gpu_throttle", "Why the GPUs' clocks are held down.", GpuThrottleCollector),
    _gpu("gpu_power", "Power and energy of the GPUs.", GpuPowerCollector),
    _gpu("gpu_temperature", "Temperatures of the GPUs.", GpuTemperatureCollector),
    Entry("node_cpu", "CPU time of the node.", lambda _: NodeCpuCollector()),
    Entry("node_memory", "Memory of the node.", lambda _: NodeMemoryCollector()),
    Entry("node_network", "Bytes through the node's network devices.", _node_network),
    Entry("node_disk", "Bytes from and to the node's block devices.", _node_disk),
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

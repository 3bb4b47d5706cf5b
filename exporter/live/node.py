"""What the live page knows of its node beside the ranks' reports: its name, GPUs and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.nvml.sample import GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, RankOnGpu


@dataclass(frozen=True, slots=True)
class GpusNow:
    """The node's GPUs at one moment, and who is on them."""

    gpus: Sequence[GpuSample] = ()
    ranks: Sequence[RankOnGpu] = ()
    processes: Mapping[int, Process] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageNode:
    """This node: its *host* name, its GPUs if *gpu_ranks* knows them, and where its Grafana is."""

    host: str = ""
    grafana_url: str | None = None
    gpu_ranks: RankJoin | None = None

    def look(self) -> GpusNow:
        """Return what is on the GPUs now; without the ranks while reading processes hangs."""
        if self.gpu_ranks is None:
            return GpusNow()
        try:
            return GpusNow(
                self.gpu_ranks.gpus(), self.gpu_ranks.ranks(), self.gpu_ranks.processes()
            )
        except WatchHangs:
            return GpusNow(self.gpu_ranks.gpus())

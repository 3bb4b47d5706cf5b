"""What the live page knows of its node beside the ranks' reports: its name, GPUs and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from exporter.nvml.sample import GpuSample
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu
from exporter.processes.watch import WatchHangs


class GpuRanks(Protocol):
    """The part of RankJoin that the page uses."""

    def gpus(self) -> Sequence[GpuSample]:
        """Return the node's GPUs."""
        ...

    def ranks(self) -> list[RankOnGpu]:
        """Return every rank of this node with a known GPU; raises WatchHangs."""
        ...

    def processes(self) -> Mapping[int, Process]:
        """Return the processes on the GPUs by id; raises WatchHangs."""
        ...


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
    gpu_ranks: GpuRanks | None = None

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

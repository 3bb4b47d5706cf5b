"""What the live page knows of its node beside the ranks' reports: its name, GPUs and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from exporter.nvml.sample import GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu


class Join(Protocol):
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
class Seen:
    """The node's GPUs at one moment, and who is on them."""

    gpus: Sequence[GpuSample] = ()
    ranks: Sequence[RankOnGpu] = ()
    processes: Mapping[int, Process] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """This node: its *host* name, its GPUs if *join* knows them, and where its Grafana is."""

    host: str = ""
    grafana_url: str | None = None
    join: Join | None = None

    def look(self) -> Seen:
        """Return what is on the GPUs now; without the ranks while reading processes hangs."""
        if self.join is None:
            return Seen()
        try:
            return Seen(self.join.gpus(), self.join.ranks(), self.join.processes())
        except WatchHangs:
            return Seen(self.join.gpus())

"""A node whose GPUs change, and the faults that are told of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import (
    GpuProcess,
    GpuSample,
    NodeSample,
    NvmlSource,
    StuckCall,
)
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import expose, series
from tests.exporter.fake_proc import process, torchrun

MINUTE: Final = 60.0
ON_GPU: Final = (GpuProcess(10),)
FINE: Final = GpuSample(0, up=True, uuid="GPU-a", gpu_busy_percent=90.0, processes=ON_GPU)
NEXT: Final = replace(FINE, index=1, uuid="GPU-b", processes=())


@dataclass
class Node:
    """A node whose GPUs change; rank 0 runs on GPU-a as process 10."""

    gpus: tuple[GpuSample, ...] = (FINE, NEXT)
    expected: ExpectedGpus = field(default_factory=ExpectedGpus)
    thresholds: Thresholds = field(default_factory=Thresholds)
    error_reason: str | None = None
    worker_pid: int | None = 1  # None: it has said nothing lately.
    worker_up: bool = True
    worker_restarts: int = 0
    stuck_call: StuckCall | None = None
    released: bool = False
    processes: Mapping[int, Process] = field(
        default_factory=lambda: {10: process(10, torchrun(0)), 20: process(20, {})}
    )

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.collector = GpuFaultsCollector(
            RankJoin(self, lambda: self.processes, self.store),
            self.store,
            self,
            self.expected,
            self.thresholds,
            "node-1",
        )

    def latest(self) -> NodeSample | None:
        if self.worker_pid is None:
            return None
        return NodeSample(
            1.0,
            len(self.gpus),
            gpus=self.gpus,
            error_reason=self.error_reason,
            worker_pid=self.worker_pid,
        )

    def lines(self) -> list[str]:
        """What is exposed now."""
        return series(expose(self.collector))

    def faults(self) -> dict[str, float]:
        """Return the value of each "fault detail gpu rank" that is exposed now."""
        found = {}
        for line in self.lines():
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            words = (labels[name] for name in ("fault", "detail", "gpu", "rank"))
            found[" ".join(filter(None, words))] = float(line.rpartition(" ")[2])
        return found

    def after(self, seconds: float, **readings: Any) -> dict[str, float]:
        """Return the faults *seconds* later, when GPU-a has these *readings*."""
        self.clock.seconds += seconds
        self.gpus = (replace(self.gpus[0], **readings), *self.gpus[1:])
        return self.faults()


SOURCE: NvmlSource = Node()  # mypy holds the stand-in to the protocol.

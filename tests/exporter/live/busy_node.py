"""A node with 64 ranks on 16 GPUs and ten minutes behind it, on a clock that the caller turns."""

import random
from dataclasses import replace
from typing import Final

from exporter.live.node import PageNode
from exporter.live.page import LiveView
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import node
from tests.exporter.snapshots import snapshot, verdict

RANKS: Final = 64
GPUS: Final = 16
FIRST_PID: Final = 1_000
STAGES: Final = {
    "data": 0.0521,
    "h2d": 0.0031,
    "forward": 0.101,
    "backward": 0.2034,
    "optimizer": 0.0123,
    "sync": 0.1512,
}


def gpu(index: int) -> GpuSample:
    """A busy GPU with four of the ranks' processes."""
    return GpuSample(
        index,
        up=True,
        uuid=f"GPU-{index:08x}-aaaa-bbbb-cccc-0123456789ab",
        name="NVIDIA H100 80GB HBM3",
        gpu_busy_percent=97.123,
        memory_total_bytes=80 * 2**30,
        memory_used_bytes=71 * 2**30 + 12_345,
        gpu_temperature_celsius=64,
        power_milliwatts=612_345,
        sm_clock_megahertz=1_980,
        throttle_reasons=0,
        pcie_link_width=16,
        pcie_link_width_max=16,
        processes=tuple(GpuProcess(FIRST_PID + rank) for rank in range(index, RANKS, GPUS)),
    )


class BusyNode:
    """Its *view* is what the page is served from; second() lets a second pass."""

    def __init__(self, seconds: int = 620) -> None:
        self.now = 0.0
        self.store = RankStore(clock=lambda: self.now)
        gpus = [gpu(index) for index in range(GPUS)]
        pids = {rank: FIRST_PID + rank for rank in range(RANKS)}
        processes = {
            pid: process(pid, torchrun(rank, WORLD_SIZE=str(RANKS))) for rank, pid in pids.items()
        }
        join = RankJoin(node(*gpus), lambda: processes, self.store)
        self.view = LiveView(NodeJobs(self.store), lambda: GPUS, PageNode("gpu-12", None, join))
        self._random = random.Random(1)
        self._ranks = [
            snapshot(
                rank=rank,
                world_size=RANKS,
                pid=pid,
                steps=0,
                stage_seconds=dict.fromkeys(STAGES, 0.0),
                rank_info={"gpu_uuid": gpus[rank % GPUS].uuid, "local_rank": str(rank)},
                verdict=verdict(ranks={"all": RANKS}),
                verdict_age_seconds=0.3,
            )
            for rank, pid in pids.items()
        ]
        for _ in range(seconds):
            self.second()

    def push(self) -> None:
        """Let a second pass in which every rank finishes two steps and reports."""
        self.now += 1.0
        for place, before in enumerate(self._ranks):
            spent = {
                stage: total + 2 * STAGES[stage] * self._random.uniform(0.9, 1.1)
                for stage, total in before.stage_seconds.items()
            }
            self._ranks[place] = replace(
                before, sequence=before.sequence + 1, steps=before.steps + 2, stage_seconds=spent
            )
            self.store.put(self._ranks[place])

    def second(self) -> None:
        """Push, and sample as the exporter does."""
        self.push()
        self.view.sample(self.now, 1_700_000_000.0 + self.now)

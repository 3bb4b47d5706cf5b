"""A node of eight GPUs at most, with a rank of one job on each, and its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily

from exporter.causes.model import ThreadState
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.listeners.peer import Peer
from exporter.nvml.sample import GpuProcess, GpuSample, NodeSample
from exporter.processes.background import WatchHangs
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import Followed, HostCost, HostWatch, Look, Who
from exporter.processes.process import Process
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.processes.rank_gpus import RankJoin
from exporter.processes.worker_states import LateRankProcess
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import HeldRank, RankStore
from exporter.scrape.sampling import CollectorRun
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.node import Clock, FixedNvml
from tests.exporter.snapshots import snapshot

USER: Final = Peer(1000)
FIRST_PID: Final = 100


class FakeHost(HostWatch):
    """Has looked at each rank that it was told to follow, but for those in *hidden*."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere"), clock=clock)
        self.clock = clock
        self.to_show: Sequence[Followed] = ()
        self.hidden: set[int] = set()
        self.saturated: dict[int, int] = {}  # Workers by rank; others have three.
        self.hangs = False
        self.hurried = False

    def follow(self, ranks: Sequence[Followed]) -> None:
        """Look at these ranks."""
        self.to_show = ranks

    def hurry(self, hurries: bool) -> None:
        """Note it."""
        self.hurried = hurries

    def latest(self) -> Look | None:
        """Return what has been used up to now. Raises WatchHangs."""
        if self.hangs:
            raise WatchHangs("hangs")
        costs = {each.who: self._cost(each.who) for each in self.to_show}
        return Look({who: one for who, one in costs.items() if one}, 0, self.clock())

    def _cost(self, who: Who) -> HostCost | None:
        if int(who[2]) in self.hidden:
            return None
        seconds = self.clock()
        used = Cost(
            running_nanoseconds=round(0.5 * seconds * NANOSECONDS),
            run_queue_nanoseconds=round(0.2 * seconds * NANOSECONDS),
            workers_run_queue_nanoseconds=round(0.5 * seconds * NANOSECONDS),
            workers_cpu_ticks=round(1.5 * seconds * TICKS_PER_SECOND),
            read_bytes=round(1e6 * seconds),
            major_faults=round(2 * seconds),
            saturated_workers=self.saturated.get(int(who[2]), 3),
        )
        quota = Throttling(round(100 * seconds), round(2 * seconds))
        waited = {"io": 0.1 * seconds, "cpu": seconds}
        return HostCost(used, CgroupCost(quota, waited), FIRST_PID + int(who[2]))


class FakeWorkers:
    """Those of a late rank's loader: seen once *states* are set."""

    def __init__(self) -> None:
        self.states: Sequence[ThreadState] = ()

    def follow(self, ranks: Sequence[LateRankProcess]) -> None:
        """Look at nothing."""

    def of(self, job_id: str, rank: int) -> Sequence[ThreadState]:
        """Return what the busiest does."""
        return self.states

    def pid(self, job_id: str, rank: int) -> int | None:
        """Return its process ID."""
        return 88 if self.states else None


class FakeNode:
    """Ranks that step twice a second, GPUs whose clock is 1.9 GHz, and what is known of them.

    *clock* is everybody's. The node's CPUs are throttled for *throttled_ratio* of the time.
    """

    def __init__(
        self,
        ranks: int = 0,
        gpus: int = 0,
        workers: FakeWorkers | None = None,
    ) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.wall_seconds = 1.8e9  # Of the wall clock, when *clock* was 0.
        self.nvml = FixedNvml(None)
        self.host = FakeHost(self.clock)
        self.processes: dict[int, Process] = {
            FIRST_PID + rank: process(FIRST_PID + rank, torchrun(rank)) for rank in range(ranks)
        }
        self.processes_hang = False
        self.stages = {"data": 0.1, "forward": 0.3, "sync": 0.6}  # of each rank's second
        self.throttled_ratio = 0.0
        self._throttled_seconds = 0.0
        self.shown: dict[str, CollectorRun] = {}
        self.causes, self.changes = LateCauses(), ChangeCauses()
        self.ranks: dict[int, Snapshot] = {rank: self._rank(rank) for rank in range(ranks)}
        self.gpus = [_gpu(index, index < ranks) for index in range(gpus)]
        self.sampler = Sampler(
            self.store,
            self.nvml,
            RankJoin(self.nvml, self._seen, self.store),
            self.host,
            self.shown.get,
        )
        self.service = EvidenceService(
            self.store,
            NodeJobs(self.store),
            self.sampler,
            self.host,
            self.causes,
            workers,
            "node-7",
            self.changes,
        )
        self.told: dict[int, list[Mapping[str, float]]] = {rank: [] for rank in range(ranks)}

    def _seen(self) -> Mapping[int, Process]:
        if self.processes_hang:
            raise WatchHangs("hangs")
        return self.processes

    def _rank(self, rank: int) -> Snapshot:
        return snapshot(
            rank=rank,
            world_size=64,
            pid=FIRST_PID + rank,
            steps=0,
            stage_seconds={},
            rank_info={"gpu_uuid": f"GPU-{rank}", "local_rank": str(rank)},
        )

    def push(self, **changes: Any) -> None:
        """Let every rank report its steps of the last second."""
        for rank, before in self.ranks.items():
            spent = before.stage_seconds
            total = {s: spent.get(s, 0.0) + each for s, each in self.stages.items()}
            now = replace(
                before,
                sequence=before.sequence + 1,
                heartbeat_timestamp_seconds=before.heartbeat_timestamp_seconds + 1.0,
                steps=before.steps + 2,
                stage_seconds=total,
                **changes,
            )
            self.ranks[rank] = now
            self.store.put(now, USER)
            figures = self.service.pushed(now)
            if figures is not None:
                self.told[rank].append(figures)

    def run(self, seconds: int, **changes: Any) -> None:
        """Let so much time pass; each second the ranks report and the exporter looks."""
        for _ in range(seconds):
            self.clock.seconds += 1.0
            self._throttled_seconds += self.throttled_ratio
            throttled = CounterMetricFamily("rankskew_node_cpu_throttled_seconds", "Of all CPUs.")
            throttled.add_metric([], self._throttled_seconds)
            self.shown["node_cpu"] = CollectorRun((throttled,), True, self.clock())
            if self.gpus:
                gpus = tuple(self.gpus)
                self.nvml.sample = NodeSample(
                    self.wall_seconds + self.clock(),
                    len(gpus),
                    gpus=gpus,
                    monotonic_seconds=self.clock(),
                )
            self.push(**changes)
            self.service.look(self.clock())

    def restart(self, rank: int) -> None:
        """Let a new process be that rank; it counts from zero."""
        began = self.ranks[rank].started_timestamp_seconds + 1_000.0
        self.ranks[rank] = replace(
            self._rank(rank),
            attempt=self.ranks[rank].attempt + 1,
            started_timestamp_seconds=began,
            heartbeat_timestamp_seconds=began,
        )

    def held(self, rank: int) -> HeldRank:
        """Return a rank as the store has it."""
        return next(each for each in self.store.ranks() if each.snapshot.rank == rank)

    def figures(self, rank: int, seconds: float = 30.0) -> dict[str, float]:
        """Return the figures of a rank over the last *seconds*."""
        return self.sampler.figures(self.held(rank), self.clock() - seconds)


def _gpu(index: int, is_used: bool) -> GpuSample:
    listed = (GpuProcess(FIRST_PID + index, 10**9),) if is_used else ()
    return GpuSample(index, True, f"GPU-{index}", sm_clock_megahertz=1_900, processes=listed)

"""A node of eight GPUs at most, with a rank of one job on each, and its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily

from exporter.causes.model import ThreadState
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.nvml.sample import NodeSample
from exporter.processes.background import WatchHangs
from exporter.processes.cgroup_cost import CgroupCost, Throttling
from exporter.processes.host_watch import HostCost, HostWatch, Look, Who
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND, Cost
from exporter.processes.worker_states import WorkerStates
from exporter.ranks.store import HeldRank
from exporter.scrape.sampling import CollectorRun
from tests.exporter.live_node import FIRST_PID, START, Node


class FakeHost(HostWatch):
    """Has looked at each rank that it follows, except those in *hidden*."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere"))
        self.seconds = 0.0
        self.hidden: set[int] = set()
        self.saturated: dict[int, int] = {}  # Workers by rank; others have three.
        self.hangs = False
        self.hurried = False

    def hurry(self, hurries: bool) -> None:
        """Record whether it hurries."""
        self.hurried = hurries

    def latest(self) -> Look | None:
        """Return what has been used up to now. Raises WatchHangs."""
        if self.hangs:
            raise WatchHangs("hangs")
        seen = [each.who for each in self._followed if int(each.who[2]) not in self.hidden]
        return Look({who: self._cost(who) for who in seen}, 0, self.seconds)

    def _cost(self, who: Who) -> HostCost:
        seconds = self.seconds
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


class FakeWorkers(WorkerStates):
    """The workers of a late rank's loader, seen once *states* are set."""

    def __init__(self) -> None:
        super().__init__(Path("/proc"))
        self.states: Sequence[ThreadState] = ()

    def _of(self, job_id: str, rank: int) -> tuple[int | None, Sequence[ThreadState]]:
        return 88 if self.states else None, self.states


class FakeNode(Node):
    """A node whose ranks step twice a second, and all that the exporter finds out about them.

    The node's CPUs are throttled for *throttled_ratio* of the time.
    """

    def __init__(self, ranks: int = 0, gpus: int = 0, workers: FakeWorkers | None = None) -> None:
        super().__init__(ranks, world_size=64, gpus=gpus)
        self.said = None
        self.host = FakeHost()
        self.stages = {"data": 0.05, "forward": 0.15, "sync": 0.3}  # of a step
        self.throttled_ratio = 0.0
        self.shown: dict[str, CollectorRun] = {}
        self.causes, self.changes = LateCauses(), ChangeCauses()
        self.sampler = Sampler(self.store, self.nvml, self.join, self.host, self.shown.get)
        parts = self.store, self.jobs, self.sampler, self.host, self.causes
        self.service = EvidenceService(*parts, workers, "gpu-12", self.changes, "http://g:1/")
        self.told: dict[int, list[Mapping[str, float]]] = {rank: [] for rank in range(ranks)}
        self.at: dict[int, dict[str, Any]] = {rank: {} for rank in range(ranks)}

    def push(self, silent: tuple[int, ...] = ()) -> None:
        """Let every rank push and read the answer."""
        super().push(silent)
        for rank, state in self.states.items():
            said = self.service.pushed(state)
            self.at[rank] = said.get("whereabouts", self.at[rank])
            if said.get("figures") is not None:
                self.told[rank].append(said["figures"])

    def after(self, seconds: int, said: dict[str, Any] | None = None, /, **changes: Any) -> None:
        """Let so many seconds pass with the verdict *said*; the exporter looks in each."""
        self.said = said or self.said
        self.change(**changes)
        for _ in range(seconds):
            self.host.seconds = self.now + 1 - START
            throttled = CounterMetricFamily("rankskew_node_cpu_throttled_seconds", "Of all CPUs.")
            throttled.add_metric([], self.throttled_ratio * self.host.seconds)
            self.shown["node_cpu"] = CollectorRun((throttled,), True, self.now)
            self.nvml.sample = NodeSample(
                self.now - self.behind_seconds,
                len(self.gpus),
                gpus=tuple(self.gpus),
                monotonic_seconds=self.now,
            )
            self.step(self.stages)
            self.step(self.stages)
            self.pass_second()
            self.service.look(self.now)

    def restart(self, rank: int) -> None:
        """Let a new process be that rank; it counts from zero."""
        self.states[rank] = replace(self.fresh(rank), attempt=self.states[rank].attempt + 1)

    def clock(self, megahertz: int, *gpus: int) -> None:
        """Let these GPUs, or all, have another clock from now on."""
        for index in gpus or range(len(self.gpus)):
            self.gpus[index] = replace(self.gpus[index], sm_clock_megahertz=megahertz)

    def held(self, rank: int) -> HeldRank:
        """Return a rank as the store has it."""
        return next(each for each in self.store.ranks() if each.snapshot.rank == rank)

    def figures(self, rank: int, seconds: float = 30.0) -> dict[str, float]:
        """Return the figures of a rank over the last *seconds*."""
        return self.sampler.figures(self.held(rank), self.now - seconds)

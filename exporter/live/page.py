"""The live page's data: the judge's verdict on each job, and this node's ranks and GPUs.

A first look that needs no Prometheus. The stages shown cover the last minute of the ranks that
push to this exporter. The verdict is that of NodeJobs, which everybody else gets too.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import TypeAdapter

from exporter.gpu_faults.fault import UNUSED, Told
from exporter.live.causes import Causes, WhySlower
from exporter.live.jobs import JobView, view_job, view_unprobed_job
from exporter.live.ranks import RankView, view_rank, view_unprobed
from exporter.nvml.sample import REASON_BITS, GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, RankOnGpu
from exporter.ranks.jobs import NodeJob
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import HeldRank, RankKey
from rank_probe.version import __version__
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES

WINDOW_SECONDS: Final = 60.0
# Fewer steps show nothing. With slow steps the window holds this many, however long they take.
MINIMUM_STEPS: Final = 5
# The first steps compile kernels and fill caches.
WARMUP_STEPS: Final = 5


class StageTimes(NamedTuple):
    """The part of a snapshot that a window keeps; a whole one, with its verdict, is far larger."""

    sampled: float
    steps: int
    stage_seconds: Mapping[str, float]


class RankWindow:
    """The last minute of one rank: the moments in which its step count changed."""

    def __init__(self) -> None:
        self._samples: deque[StageTimes] = deque()
        self._process: tuple[float, int] | None = None

    def add(self, now: float, snapshot: Snapshot) -> None:
        """Record the rank's state at *now*; a new process of the rank starts a new window."""
        process = snapshot.started_timestamp_seconds, snapshot.pid
        if self._process != process:
            self._samples.clear()
            self._process = process
        if snapshot.steps < WARMUP_STEPS:
            return
        if not self._samples or self._samples[-1].steps < snapshot.steps:
            self._samples.append(StageTimes(now, snapshot.steps, snapshot.stage_seconds))
        while self._second_is_enough(now):
            self._samples.popleft()

    def stage_seconds(self) -> dict[str, float] | None:
        """Return the mean seconds per step in each stage; None while the window is too short."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        steps = last.steps - first.steps
        if steps < MINIMUM_STEPS:
            return None
        before = first.stage_seconds
        return {
            # Never below zero, whatever a rank reports: a bar has no negative width.
            stage: max(0.0, last.stage_seconds[stage] - before.get(stage, 0.0)) / steps
            for stage in STAGES
            if stage in last.stage_seconds
        }

    def _second_is_enough(self, now: float) -> bool:
        if len(self._samples) < 3:
            return False
        second = self._samples[1]
        steps_left = self._samples[-1].steps - second.steps
        return second.sampled <= now - WINDOW_SECONDS and steps_left >= MINIMUM_STEPS


@dataclass(frozen=True, slots=True)
class RankOf:
    """A rank that runs on a GPU."""

    job_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU in base units; None is "no reading". One that is not *up* does not answer.

    *foreign_processes* is None where no rank is on the GPU, because it then belongs to no job.
    """

    gpu: int
    gpu_uuid: str
    name: str
    up: bool
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_hertz: float | None
    throttle_reasons: list[str]
    pcie_link_width: int | None
    pcie_link_width_max: int | None
    foreign_processes: int | None
    ranks: list[RankOf]


@dataclass(frozen=True, slots=True)
class GpusNow:
    """The node's GPUs at one moment, who is on them, and what is wrong with them."""

    gpus: Sequence[GpuSample] = ()
    ranks: Sequence[RankOnGpu] = ()
    processes: Mapping[int, Process] = field(default_factory=dict)
    faults: Sequence[Told] = ()


def view_gpu(gpu: GpuSample, seen: GpusNow) -> GpuView:
    """Describe *gpu*, with the ranks and the processes that were *seen* on it."""
    reasons = gpu.throttle_reasons or 0
    return GpuView(
        gpu=gpu.index,
        gpu_uuid=gpu.uuid,
        name=gpu.name,
        up=gpu.up,
        utilization_ratio=_scaled(gpu.gpu_busy_percent, 1 / 100),
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        temperature_celsius=gpu.gpu_temperature_celsius,
        power_watts=_scaled(gpu.power_milliwatts, 1 / 1000),
        sm_clock_hertz=_scaled(gpu.sm_clock_megahertz, 1e6),
        throttle_reasons=[reason for reason, bit in REASON_BITS.items() if reasons & bit],
        pcie_link_width=gpu.pcie_link_width,
        pcie_link_width_max=gpu.pcie_link_width_max,
        foreign_processes=foreign_processes(gpu, seen.ranks, seen.processes),
        ranks=[RankOf(rank.job_id, rank.rank) for rank in seen.ranks if rank.gpu_uuid == gpu.uuid],
    )


def _scaled(reading: float | None, factor: float) -> float | None:
    return None if reading is None else round(reading * factor, 4)


@dataclass(frozen=True, slots=True)
class PageNode:
    """This node: its *host* name, its GPUs and their *faults*, and where its Grafana is."""

    host: str = ""
    grafana_url: str | None = None
    gpu_ranks: RankJoin | None = None
    faults: Callable[[], Iterable[Told]] = tuple

    def look(self) -> GpusNow:
        """Return what is on the GPUs now; without the ranks while reading processes hangs."""
        if self.gpu_ranks is None:
            return GpusNow()
        gpus, faults = self.gpu_ranks.gpus(), tuple(self.faults())
        try:
            return GpusNow(gpus, self.gpu_ranks.ranks(), self.gpu_ranks.processes(), faults)
        except WatchHangs:
            return GpusNow(gpus, faults=faults)


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """The page's content as of *timestamp_seconds*, None before the first sample.

    *host* is the node's name. *gpus_visible* is the number of GPUs that the driver lists, None if
    unknown. *grafana_url* is what --grafana.url says.
    """

    version: str
    host: str
    grafana_url: str | None
    timestamp_seconds: float | None
    window_seconds: float
    gpus_visible: int | None
    jobs: list[JobView]
    gpus: list[GpuView]


AS_JSON: Final = TypeAdapter(LiveSummary)


class LiveView:
    """Watches the ranks and repeats which are late. Call from the event loop only.

    *gpus_visible* returns the number of GPUs that the driver lists, None if unknown. *causes* knows
    why ranks of this node are late, *why_slower* why all of them take longer than before.
    """

    def __init__(
        self,
        jobs: NodeJobs,
        gpus_visible: Callable[[], int | None],
        node: PageNode | None = None,
        causes: Causes = lambda job_id, rank: None,
        why_slower: WhySlower = lambda job_id, change: None,
    ) -> None:
        self._jobs_here = jobs
        self._causes = causes
        self._why_slower = why_slower
        self._gpus_visible = gpus_visible
        self._node = node or PageNode()
        self._windows: dict[RankKey, RankWindow] = {}
        self._jobs: list[NodeJob] = []
        self._seen = GpusNow()
        self._timestamp: float | None = None
        self._gpus_there: int | None = None
        self._summary: LiveSummary | None = None
        self._json: bytes | None = None

    def sample(self, now: float, timestamp: float) -> None:
        """Record the state of every rank; call it once a second.

        *now* is the store's clock, which measures all ages; *timestamp* is the same moment in Unix
        seconds.
        """
        jobs = self._jobs_here.at(now)
        held = [rank for job in jobs for rank in job.ranks]
        self._windows = {rank.key: self._windows.get(rank.key) or RankWindow() for rank in held}
        for rank in held:
            self._windows[rank.key].add(now, rank.snapshot)
        self._jobs, self._timestamp = jobs, timestamp
        self._gpus_there = self._gpus_visible()
        self._seen = self._node.look()
        self._summary = None
        self._json = None

    def summary(self) -> LiveSummary:
        """Return the page's content as of the last sample; it is made when somebody asks."""
        if self._summary is None:
            self._summary = self._make()
        return self._summary

    def json(self) -> bytes:
        """Return summary() as JSON, made once a sample for all who ask."""
        if self._json is None:
            self._json = AS_JSON.dump_json(self.summary())
        return self._json

    def _make(self) -> LiveSummary:
        seen = self._seen
        found = _by_job(seen)
        reporting = [self._job(job, found.pop(job.job_id, [])) for job in self._jobs]
        host = self._node.host
        others = [view_unprobed_job(each, found[each], host, seen.faults) for each in sorted(found)]
        return LiveSummary(
            version=__version__,
            host=host,
            grafana_url=self._node.grafana_url,
            timestamp_seconds=self._timestamp,
            window_seconds=WINDOW_SECONDS,
            gpus_visible=self._gpus_there,
            jobs=[*reporting, *others],
            gpus=[view_gpu(gpu, seen) for gpu in seen.gpus],
        )

    def _job(self, job: NodeJob, found: Sequence[RankOnGpu]) -> JobView:
        """Describe *job*, of which these ranks were *found* on GPUs."""
        places = {each.rank: each for each in found}
        held = sorted(job.ranks, key=lambda rank: rank.key)
        ranks = [self._rank(rank, job.now, places.pop(rank.snapshot.rank, None)) for rank in held]
        unprobed = [view_unprobed(rank, self._node.host) for rank in places.values()]
        return view_job(job, ranks, unprobed, self._causes, self._why_slower)

    def _rank(self, rank: HeldRank, now: float, place: RankOnGpu | None) -> RankView:
        means = self._windows[rank.key].stage_seconds()
        return view_rank(rank, means, now, self._node.host, place)


def _by_job(seen: GpusNow) -> dict[str, list[RankOnGpu]]:
    """Return the ranks of each job; none of one that only holds GPUs still."""
    found = {who[0]: list[RankOnGpu]() for _, who, each in seen.faults if each.fault == UNUSED}
    for rank in seen.ranks:
        found.setdefault(rank.job_id, []).append(rank)
    return found

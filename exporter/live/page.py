"""The live page's data: the judge's verdict on each job, and this node's ranks.

A first look that needs no Prometheus. The stages shown cover the last minute of the ranks that
push to this exporter. The verdict covers the ranks of all nodes; this module only repeats it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from exporter.live.summary import JobVerdict, RankView, job_verdict, view_rank
from exporter.ranks.jobs import NodeJob, node_jobs
from exporter.ranks.store import HeldRank, RankKey, RankStore
from rank_probe.snapshot import Snapshot
from rank_probe.stages import STAGES
from rank_probe.version import __version__

WINDOW_SECONDS: Final = 60.0
# Fewer steps show nothing. With slow steps the window holds this many, however long they take.
MINIMUM_STEPS: Final = 5
# The first steps compile kernels and fill caches.
WARMUP_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class JobView:
    """One job on the page; *ranks* are those on this node only."""

    job_id: str
    world_size: int
    coverage: str
    steps: int
    step_seconds: float | None
    verdict: JobVerdict
    ranks: list[RankView]


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """The page's content as of *timestamp_seconds*, None before the first sample.

    *gpus_visible* is the number of GPUs that the driver lists, None if unknown.
    """

    version: str
    timestamp_seconds: float | None
    window_seconds: float
    gpus_visible: int | None
    jobs: list[JobView]


class LiveView:
    """Watches the store and repeats which ranks are late. Call from the event loop only.

    *gpus_visible* returns the number of GPUs that the driver lists, None if unknown.
    """

    def __init__(
        self, store: RankStore, gpus_visible: Callable[[], int | None] = lambda: None
    ) -> None:
        self._store = store
        self._gpus_visible = gpus_visible
        self._windows: dict[RankKey, RankWindow] = {}
        self._held: list[HeldRank] = []
        self._sampled = 0.0
        self._timestamp: float | None = None
        self._gpus_there: int | None = None
        self._summary: LiveSummary | None = None

    def sample(self, now: float, timestamp: float) -> None:
        """Record the state of every rank; call it once a second.

        *now* is the store's clock, which measures all ages; *timestamp* is the same moment in Unix
        seconds.
        """
        held = self._store.ranks()
        self._windows = {_key(rank): self._windows.get(_key(rank)) or RankWindow() for rank in held}
        for rank in held:
            self._windows[_key(rank)].add(now, rank.snapshot)
        self._held, self._sampled, self._timestamp = held, now, timestamp
        self._gpus_there = self._gpus_visible()
        self._summary = None

    def summary(self) -> LiveSummary:
        """Return the page's content as of the last sample."""
        if self._summary is None:
            self._summary = LiveSummary(
                version=__version__,
                timestamp_seconds=self._timestamp,
                window_seconds=WINDOW_SECONDS,
                gpus_visible=self._gpus_there,
                jobs=[self._job(job) for job in node_jobs(self._held, self._sampled)],
            )
        return self._summary

    def _job(self, job: NodeJob) -> JobView:
        held = sorted(job.ranks, key=_key)
        ranks = [
            view_rank(rank, self._windows[_key(rank)].stage_seconds(), job.now) for rank in held
        ]
        world_size = job.world_size or max(rank.snapshot.world_size for rank in held)
        steps = [rank.step_seconds for rank in ranks if rank.step_seconds is not None]
        return JobView(
            job_id=job.job_id,
            world_size=world_size,
            coverage=f"{len(ranks)} of {world_size} ranks",
            steps=max(rank.steps for rank in ranks),
            step_seconds=sum(steps) / len(steps) if steps else None,
            verdict=job_verdict(job, ranks),
            ranks=ranks,
        )


class Moment(NamedTuple):
    """The part of a snapshot that a window keeps; a whole one, with its verdict, is far larger."""

    sampled: float
    steps: int
    stage_seconds: Mapping[str, float]


class RankWindow:
    """The last minute of one rank: the moments in which its step count changed."""

    def __init__(self) -> None:
        self._samples: deque[Moment] = deque()
        self._process: tuple[float, int] | None = None

    def add(self, now: float, snapshot: Snapshot) -> None:
        """Record the rank's state at *now*; a new process of the rank starts a new window."""
        if self._process != _process(snapshot):
            self._samples.clear()
            self._process = _process(snapshot)
        if snapshot.steps < WARMUP_STEPS:
            return
        if not self._samples or self._samples[-1].steps < snapshot.steps:
            self._samples.append(Moment(now, snapshot.steps, snapshot.stage_seconds))
        while self._second_is_enough(now):
            self._samples.popleft()

    def stage_seconds(self) -> dict[str, float] | None:
        """Return the mean seconds per step in each stage; None while the window is too short."""
        if not self._samples or self._steps() < MINIMUM_STEPS:
            return None
        first, last = self._samples[0].stage_seconds, self._samples[-1].stage_seconds
        return {
            # Never below zero, whatever a rank reports: a bar has no negative width.
            stage: max(0.0, last[stage] - first.get(stage, 0.0)) / self._steps()
            for stage in STAGES
            if stage in last
        }

    def _steps(self) -> int:
        return self._samples[-1].steps - self._samples[0].steps

    def _second_is_enough(self, now: float) -> bool:
        if len(self._samples) < 3:
            return False
        second = self._samples[1]
        steps_left = self._samples[-1].steps - second.steps
        return second.sampled <= now - WINDOW_SECONDS and steps_left >= MINIMUM_STEPS


def _key(rank: HeldRank) -> RankKey:
    return rank.snapshot.job_id, rank.snapshot.rank


def _process(snapshot: Snapshot) -> tuple[float, int]:
    return snapshot.started_timestamp_seconds, snapshot.pid

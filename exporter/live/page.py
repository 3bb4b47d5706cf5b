"""The live page's data: the judge's verdict on each job, and this node's ranks and GPUs.

A first look that needs no Prometheus. The stages shown cover the last minute of the ranks that
push to this exporter. The verdict is that of NodeJobs, which everybody else gets too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from exporter.live.causes import Causes, WhySlower
from exporter.live.gpus import GpuView, view_gpus
from exporter.live.jobs import JobView, view_job, view_unprobed_job
from exporter.live.node import PageNode
from exporter.live.ranks import RankView, view_rank, view_unprobed
from exporter.live.window import WINDOW_SECONDS, RankWindow
from exporter.processes.rank_gpus import RankOnGpu
from exporter.ranks.jobs import NodeJob
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import HeldRank, RankKey
from rank_probe.version import __version__


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
        gpus_visible: Callable[[], int | None] = lambda: None,
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
        keys = [_key(rank) for rank in held]
        self._windows = {key: self._windows.get(key) or RankWindow() for key in keys}
        for key, rank in zip(keys, held, strict=True):
            self._windows[key].add(now, rank.snapshot)
        self._jobs, self._timestamp = jobs, timestamp
        self._gpus_there = self._gpus_visible()
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
        seen = self._node.look()
        found = _by_job(seen.ranks)
        reporting = [self._job(job, found.pop(job.job_id, [])) for job in self._jobs]
        host = self._node.host
        others = [view_unprobed_job(job_id, found[job_id], host) for job_id in sorted(found)]
        return LiveSummary(
            version=__version__,
            host=host,
            grafana_url=self._node.grafana_url,
            timestamp_seconds=self._timestamp,
            window_seconds=WINDOW_SECONDS,
            gpus_visible=self._gpus_there,
            jobs=[*reporting, *others],
            gpus=view_gpus(seen.gpus, seen.ranks, seen.processes),
        )

    def _job(self, job: NodeJob, found: Sequence[RankOnGpu]) -> JobView:
        """Describe *job*, of which these ranks were *found* on GPUs."""
        places = {each.rank: each for each in found}
        held = sorted(job.ranks, key=_key)
        ranks = [self._rank(rank, job.now, places.pop(rank.snapshot.rank, None)) for rank in held]
        unprobed = [view_unprobed(rank, self._node.host) for rank in places.values()]
        return view_job(job, ranks, unprobed, self._causes, self._why_slower)

    def _rank(self, rank: HeldRank, now: float, place: RankOnGpu | None) -> RankView:
        means = self._windows[_key(rank)].stage_seconds()
        return view_rank(rank, means, now, self._node.host, place)


def _by_job(ranks: Sequence[RankOnGpu]) -> dict[str, list[RankOnGpu]]:
    found: dict[str, list[RankOnGpu]] = {}
    for rank in ranks:
        found.setdefault(rank.job_id, []).append(rank)
    return found


def _key(rank: HeldRank) -> RankKey:
    return rank.snapshot.job_id, rank.snapshot.rank

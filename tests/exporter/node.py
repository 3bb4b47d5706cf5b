"""A node: its clock, which only a test turns, its GPUs, and ranks that push to its store."""

from dataclasses import dataclass

from exporter.listeners.peer import Peer
from exporter.nvml.sample import GpuSample, NodeSample, StuckCall
from exporter.ranks.jobs import NodeJob
from exporter.ranks.limits import RankLimits
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.snapshots import snapshot

USER, OTHER = Peer(1000), Peer(1001)


class Clock:
    """Stands in for any clock that is a function."""

    def __init__(self, seconds: float = 5_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.seconds += seconds


@dataclass
class FixedNvml:
    """The same sample until a test sets another."""

    sample: NodeSample | None
    worker_up: bool = True
    worker_restarts: int = 0
    stuck_call: StuckCall | None = None
    released: bool = False

    def latest(self) -> NodeSample | None:
        return self.sample


# A node whose worker runs and has found no driver, and one whose worker has not reported yet.
NO_DRIVER = FixedNvml(NodeSample(1.0, gpus_visible=0))
NO_SAMPLE = FixedNvml(None, worker_up=False)


def node(*gpus: GpuSample) -> FixedNvml:
    """A node with *gpus*."""
    return FixedNvml(NodeSample(1.0, len(gpus), "999.1", "13.1", gpus))


class PushingNode:
    """A store, its clock, and what it knows of its jobs."""

    def __init__(self, limits: RankLimits | None = None, thresholds: Thresholds | None = None):
        self.clock = Clock()
        self.store = RankStore(limits, self.clock)
        self.jobs = NodeJobs(self.store, thresholds)
        self._sequence = 0

    def push(self, peer: Peer | None = None, /, **changes: object) -> bool:
        """Take in the next snapshot of a rank with *changes*; return whether it is news."""
        self._sequence += 1
        return self.store.put(snapshot(**({"sequence": self._sequence} | changes)), peer)

    def held(self) -> list[tuple[str, int]]:
        """Return job and rank of all that the store has."""
        return [(rank.snapshot.job_id, rank.snapshot.rank) for rank in self.store.ranks()]

    def job(self) -> NodeJob:
        """Return the only job."""
        [job] = self.jobs.now()
        return job

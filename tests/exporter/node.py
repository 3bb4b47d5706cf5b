"""A node whose ranks push to a store, on a clock that the test turns."""

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import NodeJob
from exporter.ranks.limits import RankLimits
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

USER, OTHER = Peer(1000), Peer(1001)


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

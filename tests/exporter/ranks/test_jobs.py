"""What one node says of a job is what the job's own ranks say."""

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot, verdict

POD, STRANGER = Peer(0, "pod"), Peer(0, "stranger")


def test_verdict_and_size_are_those_of_who_came_first() -> None:
    """Root in another container that claims a further rank cannot say that nobody is late."""
    clock = Clock()
    store = RankStore(clock=clock)
    store.put(snapshot(rank=2), POD)
    clock.seconds += 1.0
    forged = verdict(step=9_999, late=())
    store.put(snapshot(rank=3, world_size=4, verdict=forged, attempt=9), STRANGER)
    store.put(snapshot(rank=2, sequence=2, world_size=8, verdict=verdict()), POD)
    [job] = node_jobs(store.ranks(), clock())
    spoken = job.spoken()

    assert spoken is not None
    assert (spoken.verdict.step, len(spoken.verdict.late)) == (1_200, 1)
    assert job.world_size == 8


def test_verdict_of_another_pod_is_better_than_none() -> None:
    """The first pod may have its probe off."""
    store = RankStore(clock=Clock())
    store.put(snapshot(rank=0), POD)
    store.put(snapshot(rank=1, verdict=verdict()), STRANGER)
    [job] = node_jobs(store.ranks(), 5_000.0)

    assert job.spoken() is not None

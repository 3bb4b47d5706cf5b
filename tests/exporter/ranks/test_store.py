"""The rank store keeps the newest state of each rank, as long as it is news, for its owner."""

import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import SILENT_SECONDS, Forbidden, RankStore, Superseded
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

USER, OTHER = Peer(1000), Peer(1001)
NEWER = {"started_timestamp_seconds": 2_000.0, "attempt": 1}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> RankStore:
    return RankStore(clock=clock)


def held(store: RankStore) -> list[tuple[str, int]]:
    return [(rank.snapshot.job_id, rank.snapshot.rank) for rank in store.ranks()]


def test_newest_snapshot_replaces_the_one_before(clock: Clock, store: RankStore) -> None:
    """A rank has one state, the latest, with the time it came; one that is not newer is ignored."""
    assert store.ranks() == []
    assert store.put(snapshot(sequence=1, steps=10))
    clock.seconds += 7
    assert store.put(snapshot(sequence=2, steps=20))
    for sequence in (1, 2):
        assert not store.put(snapshot(sequence=sequence, steps=30))

    (rank,) = store.ranks()
    assert (rank.snapshot.steps, rank.received_seconds) == (20, 5_007.0)


@pytest.mark.parametrize(("attempt", "started"), [(0, 1_000.0), (1, 999.0)])
def test_older_process_cannot_take_its_rank_back(
    clock: Clock, store: RankStore, attempt: int, started: float
) -> None:
    """Whatever its sequence number is, and however silent its successor."""
    store.put(snapshot(attempt=1, started_timestamp_seconds=1_000.0, sequence=1))
    for _ in range(2):
        with pytest.raises(Superseded, match="newer process already reports rank 0 of job 'llama'"):
            store.put(snapshot(sequence=99, attempt=attempt, started_timestamp_seconds=started))
        clock.seconds += SILENT_SECONDS
    assert store.ranks()[0].snapshot.sequence == 1


@pytest.mark.parametrize(("attempt", "started"), [(2, 900.0), (1, 1_001.0)])
def test_newer_process_takes_over_at_its_first_push(
    store: RankStore, attempt: int, started: float
) -> None:
    """A restarted rank is seen at once, although its counters and sequence start over."""
    store.put(snapshot(attempt=1, started_timestamp_seconds=1_000.0, sequence=99))

    assert store.put(snapshot(sequence=1, attempt=attempt, started_timestamp_seconds=started))
    assert store.ranks()[0].snapshot.sequence == 1


@pytest.mark.parametrize("finished", [True, False])
def test_requeued_job_is_not_locked_out_by_its_own_past(
    clock: Clock, store: RankStore, finished: bool
) -> None:
    """Who counts attempts from 0 again takes over once the old process has ended, or is silent."""
    store.put(snapshot(attempt=3, started_timestamp_seconds=1_000.0, finished=finished))
    requeued = snapshot(attempt=0, started_timestamp_seconds=2_000.0)
    if not finished:
        with pytest.raises(Superseded):
            store.put(requeued)
        clock.seconds += SILENT_SECONDS

    assert store.put(requeued)


@pytest.mark.parametrize("other", [OTHER, None, Peer(0), Peer(USER.uid, "a-container")])
def test_rank_belongs_to_whom_first_reported_it(store: RankStore, other: Peer | None) -> None:
    """Not another user, nor root, nor the same user in a container, nor nobody in particular
    can replace it, however new their process is.
    """
    store.put(snapshot(job_id="local"), USER)

    with pytest.raises(
        Forbidden, match="Rank 0 of job 'local' belongs to another user or container"
    ) as refusal:
        store.put(snapshot(job_id="local", sequence=2, **NEWER), other)
    assert str(refusal.value).endswith("(uid 1000); set RANKSKEW_JOB_ID to a unique name.")
    assert store.put(snapshot(job_id="mine"), other)
    assert store.put(snapshot(job_id="local", **NEWER), USER)
    with pytest.raises(Superseded):  # For one user the order of his processes decides.
        store.put(snapshot(job_id="local", sequence=9), USER)


def test_rank_of_nobody_is_not_protected(store: RankStore) -> None:
    """A process without a uid cannot keep a user from his rank by claiming to be the newest."""
    store.put(snapshot(attempt=9, started_timestamp_seconds=1e15))

    assert store.put(snapshot(), USER)
    with pytest.raises(Forbidden):
        store.put(snapshot(attempt=9, started_timestamp_seconds=1e15, sequence=2))
    assert [rank.owner for rank in store.ranks()] == [USER]


@pytest.mark.parametrize(
    ("next_one", "seconds"),
    [(OTHER, 300.1), (None, 300.1), (Peer(USER.uid, "pod"), SILENT_SECONDS)],
)
def test_silent_rank_goes_to_the_next(
    clock: Clock, store: RankStore, next_one: Peer | None, seconds: float
) -> None:
    """A restarted pod gets its rank soon; another user only when nobody can wait for it any more.

    A rank that is stuck in native code does not push, and must not lose its place for that. Who
    comes back after so long learns why nobody sees the rank.
    """
    store.put(snapshot(**NEWER), USER)
    clock.seconds += seconds - 0.1
    with pytest.raises(Forbidden):
        store.put(snapshot(), next_one)

    clock.seconds += 0.1
    assert store.put(snapshot(), next_one)
    assert [rank.owner for rank in store.ranks()] == [next_one]
    if next_one == OTHER:
        with pytest.raises(Forbidden, match="uid 1001"):
            store.put(snapshot(sequence=2, **NEWER), USER)


def test_stuck_rank_of_a_container_is_not_taken_for_a_dead_one(
    clock: Clock, store: RankStore
) -> None:
    """A restarted pod gets its rank once the old process is gone; root in any other does not."""
    with subprocess.Popen(["true"]) as ended:
        pass
    store.put(snapshot(), Peer(0, "pod", os.getpid()))
    clock.seconds += 300.0
    with pytest.raises(Forbidden):
        store.put(snapshot(**NEWER), Peer(0, "stranger"))
    store.put(snapshot(sequence=2), Peer(0, "pod", ended.pid))

    clock.seconds += SILENT_SECONDS
    assert store.put(snapshot(**NEWER), Peer(0, "stranger"))


@pytest.mark.parametrize("other", [OTHER, Peer(0, "pod"), None])
def test_nobody_adds_a_rank_to_anothers_job(store: RankStore, other: Peer | None) -> None:
    """Its verdict and its size would be taken for those of the job, until all of it has ended.

    Then whoever comes next gets the place, even with a process that started earlier.
    """
    for rank in (0, 1):
        store.put(snapshot(rank=rank, **NEWER), USER)
    for changes in ({"rank": 3}, {"rank": 8, "world_size": 9}, {"rank": 3, "finished": True}):
        with pytest.raises(Forbidden, match="Rank 0 of job 'llama' belongs to another user"):
            store.put(snapshot(**changes), other)
    store.put(snapshot(rank=0, sequence=2, finished=True, **NEWER), USER)
    with pytest.raises(Forbidden, match="Rank 1 of job 'llama'"):
        store.put(snapshot(rank=0, sequence=3), other)

    store.put(snapshot(rank=1, sequence=2, finished=True, **NEWER), USER)
    assert store.put(snapshot(rank=0), other)
    assert store.ranks()[0].owner == other


def test_pods_of_one_job_share_it(store: RankStore) -> None:
    """In numeric order: rank 10 follows rank 9, not rank 1."""
    for rank in (10, 9, 1):
        assert store.put(snapshot(rank=rank, world_size=16), Peer(0, f"pod-{rank}"))

    assert held(store) == [("llama", 1), ("llama", 9), ("llama", 10)]
    with pytest.raises(Forbidden):
        store.put(snapshot(rank=1, world_size=16, sequence=2), Peer(0, "pod-9"))


def test_batch_job_takes_back_the_number_that_was_claimed_before(store: RankStore) -> None:
    """Numbers of batch jobs can be guessed; the job's own cgroup cannot be forged."""
    for rank in range(2):
        store.put(snapshot(job_id="77", rank=rank, finished=True), OTHER)
    store.put(snapshot(job_id="78"), OTHER)

    assert store.put(snapshot(job_id="77"), Peer(USER.uid, "77"))
    assert held(store) == [("77", 0), ("78", 0)]
    with pytest.raises(Forbidden, match="uid 1000"):
        store.put(snapshot(job_id="77", rank=1), OTHER)


def run(store: RankStore, ranks: Iterable[int], owner: Peer | None = None, **changes: Any) -> None:
    """Let the processes of *ranks* push, as they do a minute after they began."""
    for rank in ranks:
        store.put(snapshot(**({"rank": rank, "world_size": 4} | changes)), owner)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"attempt": 1, "world_size": 2}),
        # Attempts count from 0 again; the next run begins ten seconds after the end of this.
        ({"attempt": 3, "finished": True}, {}),
        ({"attempt": 3}, {}),
    ],
)
def test_restart_with_fewer_ranks_leaves_no_dead_copies(
    clock: Clock, store: RankStore, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Ranks that a later run has no place for here are gone, neither silent nor finished."""
    run(store, range(4), **before)
    clock.seconds += 70.0
    after |= {"started_timestamp_seconds": 1_070.0, "heartbeat_timestamp_seconds": 1_130.0}
    run(store, range(2), **after)

    assert held(store) == [("llama", 0), ("llama", 1)]


def test_shrunk_job_of_the_same_attempt_leaves_no_dead_copies(
    clock: Clock, store: RankStore
) -> None:
    """Elastic ranks that shrink keep their attempt: those outside the new world are gone."""
    run(store, range(4))
    clock.seconds += 5.0
    new: dict[str, Any] = {
        "world_size": 2,
        "started_timestamp_seconds": 1_062.0,
        "heartbeat_timestamp_seconds": 1_065.5,
    }
    run(store, range(2), **new)
    assert len(held(store)) == 4  # They may push yet: whoever does is no dead copy.

    clock.seconds += SILENT_SECONDS - 5.0
    run(store, range(2), sequence=2, **new)
    assert held(store) == [("llama", 0), ("llama", 1)]


@pytest.mark.parametrize("newer", [{"attempt": 1}, {"world_size": 3}])
def test_process_that_outlived_its_run_is_no_silent_rank(
    clock: Clock, store: RankStore, newer: dict[str, Any]
) -> None:
    """Where the old run's processes end while the new one's begin, they still leave no copies."""
    newer |= {"started_timestamp_seconds": 1_060.5}
    run(store, range(3), heartbeat_timestamp_seconds=1_060.5, **newer)
    clock.seconds += 5.0
    run(store, [3])  # It takes long to end.
    assert len(held(store)) == 4

    clock.seconds += SILENT_SECONDS
    run(store, range(3), sequence=2, heartbeat_timestamp_seconds=1_075.5, **newer)
    assert held(store) == [("llama", 0), ("llama", 1), ("llama", 2)]


def test_silent_rank_of_this_run_or_of_another_user_stays(clock: Clock, store: RankStore) -> None:
    """Another user's job of the same name is another run, however new it is."""
    run(store, range(4), USER)
    clock.seconds += 300.0
    run(store, range(3), USER, sequence=2)
    clock.seconds += 300.1
    run(store, [0], OTHER, attempt=9, world_size=1)

    assert held(store) == [("llama", rank) for rank in range(4)]


def test_start_of_a_process_is_told_once(clock: Clock, store: RankStore) -> None:
    """When the wall clock steps back in a run, none of its ranks began any later for that."""
    store.put(snapshot())
    clock.seconds += 100.0
    store.put(snapshot(sequence=2, heartbeat_timestamp_seconds=1_000.0))

    (rank,) = store.ranks()
    assert rank.began_seconds == 5_000.0 - 60.5


@pytest.mark.parametrize("hour", [3_600.0, -3_600.0])
@pytest.mark.parametrize(("finished", "retention_seconds"), [(True, 300.0), (False, 3_600.0)])
def test_rank_is_forgotten_after_its_retention(
    monkeypatch: pytest.MonkeyPatch, hour: float, finished: bool, retention_seconds: float
) -> None:
    """When the wall clock jumps an hour, no rank disappears and none becomes immortal."""
    wall, monotonic = Clock(), Clock()
    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(time, "monotonic", monotonic)
    store = RankStore()
    store.put(snapshot(finished=finished))

    wall.seconds += hour
    assert held(store) == [("llama", 0)]
    store.put(snapshot(job_id="after", finished=finished))
    wall.seconds -= hour
    monotonic.seconds += retention_seconds
    assert held(store) == [("after", 0), ("llama", 0)]
    monotonic.seconds += 0.1
    assert held(store) == []


START = 1_000.0


class Node:
    """A store, and ranks that push to it at the same times by their clock as by its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.began = self.clock.seconds
        self._sequence = 0

    @property
    def wall(self) -> float:
        return START + self.clock.seconds - self.began

    def push(self, rank: int, ranks: int, formed: float | None = None, **changes: object) -> bool:
        self._sequence += 1
        return self.store.put(
            snapshot(
                rank=rank,
                world_size=ranks,
                sequence=self._sequence,
                heartbeat_timestamp_seconds=self.wall,
                group_formed_timestamp_seconds=formed,
                **changes,
            )
        )

    def state(self) -> tuple[list[int], list[int], list[int], int | None]:
        """Return the ranks that beat, are silent, have finished, and the size of the job."""
        (job,) = node_jobs(self.store.ranks(), self.clock.seconds)
        kinds = (job.beating, job.silent, job.finished)
        beating, silent, finished = ([rank.snapshot.rank for rank in kind] for kind in kinds)
        return beating, silent, finished, job.world_size


def test_rank_that_died_before_the_group_was_formed_is_not_missing() -> None:
    """Another process has its number now, here or on another node, and the others keep theirs."""
    node = Node()
    for rank in range(4):
        node.push(rank, 8)
    node.clock.seconds += SILENT_SECONDS + 5
    for rank in (0, 1, 2):
        node.push(rank, 8)
    assert node.state() == ([0, 1, 2], [3], [], 8)
    node.clock.seconds += 1
    for rank in (0, 1, 2):
        node.push(rank, 7, formed=node.wall - 0.5)

    assert node.state() == ([0, 1, 2], [], [], 7)


def test_rank_that_dies_in_the_new_group_is_missing() -> None:
    """It reported in it once."""
    node = Node()
    for rank in range(3):
        node.push(rank, 3, formed=START)
    node.clock.seconds += SILENT_SECONDS
    for rank in (0, 1):
        node.push(rank, 3, formed=START)

    assert node.state() == ([0, 1], [2], [], 3)


def test_rank_that_dies_is_missing_though_the_wall_clock_was_set_back() -> None:
    """The group seems to be formed in the future then, and is not of any time after the death."""
    node = Node()
    for rank in range(3):
        node.push(rank, 3, formed=START)
    node.began += 3_600.0
    node.clock.seconds += SILENT_SECONDS
    for rank in (0, 1):
        node.push(rank, 3, formed=START)

    assert node.state() == ([0, 1], [2], [], 3)


def test_every_process_may_get_the_number_of_another_one() -> None:
    """Whichever of them says it first; nobody is refused, nothing is left."""
    node = Node()
    for rank in range(4):
        node.push(rank, 4)
    node.clock.seconds += 1
    formed = node.wall
    # What was rank 3 is rank 2 now, and so on; rank 0 has died.
    for rank in (3, 2, 1):
        node.push(rank - 1, 3, formed=formed, started_timestamp_seconds=formed)
        assert node.push(rank, 4, finished=True) == (rank == 3)
    node.clock.seconds += SILENT_SECONDS
    for rank in range(3):
        node.push(rank, 3, formed=formed, started_timestamp_seconds=formed)

    assert node.state() == ([0, 1, 2], [], [], 3)


def test_spare_takes_a_number_over_though_it_started_earlier() -> None:
    """It waited since before the process began that it replaces, which may still report."""
    node = Node()
    node.push(1, 2, formed=START, started_timestamp_seconds=START)
    node.clock.seconds += 1
    assert node.push(1, 2, formed=node.wall, started_timestamp_seconds=START - 500, pid=2)
    with pytest.raises(Superseded):
        node.push(1, 2, formed=START, started_timestamp_seconds=START)
    assert not node.push(1, 2, formed=START, started_timestamp_seconds=START, finished=True)
    (held,) = node.store.ranks()

    assert held.snapshot.pid == 2

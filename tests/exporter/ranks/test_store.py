"""The rank store keeps the newest state of each rank for its owner, and shares its places."""

import os
import subprocess
import time
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.limits import NoRoom, RankLimits
from exporter.ranks.store import SILENT_SECONDS, Forbidden, RankStore, Superseded
from tests.exporter.clock import Clock
from tests.exporter.node import OTHER, USER, PushingNode
from tests.exporter.snapshots import snapshot

NEWER = {"started_timestamp_seconds": 2_000.0, "attempt": 1}
START = 1_000.0


class Node(PushingNode):
    """One whose wall clock is known: it was 1,000 s when the node's own began."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.clock.seconds

    @property
    def wall(self) -> float:
        return START + self.clock.seconds - self.began

    def run(self, ranks: Iterable[int], owner: Peer | None = None, /, **changes: Any) -> None:
        """Let the processes of *ranks* push, as they do a minute after they began."""
        for rank in ranks:
            self.push(owner, **({"rank": rank, "world_size": 4} | changes))

    def beat(self, rank: int, ranks: int, formed: float | None = None, **changes: object) -> bool:
        """Let a rank of a group that was *formed* then push now."""
        return self.push(
            rank=rank,
            world_size=ranks,
            heartbeat_timestamp_seconds=self.wall,
            group_formed_timestamp_seconds=formed,
            **changes,
        )

    def state(self) -> tuple[list[int], list[int], list[int], int | None]:
        """Return the ranks that beat, are silent, have finished, and the size of the job."""
        job = self.job()
        kinds = (job.beating, job.silent, job.finished)
        beating, silent, finished = ([rank.snapshot.rank for rank in kind] for kind in kinds)
        return beating, silent, finished, job.world_size


@pytest.fixture
def node() -> Node:
    return Node()


def test_newest_snapshot_replaces_the_one_before(node: Node) -> None:
    """A rank has one state, the latest, with the time it came; one that is not newer is ignored."""
    assert node.store.ranks() == []
    assert node.push(sequence=1, steps=10)
    node.clock.seconds += 7
    assert node.push(sequence=2, steps=20)
    for sequence in (1, 2):
        assert not node.push(sequence=sequence, steps=30)

    (rank,) = node.store.ranks()
    assert (rank.snapshot.steps, rank.received_seconds) == (20, 5_007.0)


@pytest.mark.parametrize(
    ("attempt", "started", "is_newer"),
    [(0, 1_000.0, False), (1, 999.0, False), (2, 900.0, True), (1, 1_001.0, True)],
)
def test_newer_process_takes_over_at_its_first_push(
    node: Node, attempt: int, started: float, is_newer: bool
) -> None:
    """Although its sequence starts over; an older one cannot, however silent its successor."""
    node.push(attempt=1, started_timestamp_seconds=1_000.0, sequence=50)
    changes = {"attempt": attempt, "started_timestamp_seconds": started}
    if is_newer:
        assert node.push(sequence=1, **changes)
        return
    for _ in range(2):
        with pytest.raises(Superseded, match="newer process already reports rank 0 of job 'llama'"):
            node.push(sequence=99, **changes)
        node.clock.seconds += SILENT_SECONDS
    assert node.store.ranks()[0].snapshot.sequence == 50


@pytest.mark.parametrize("finished", [True, False])
def test_requeued_job_is_not_locked_out_by_its_own_past(node: Node, finished: bool) -> None:
    """Who counts attempts from 0 again takes over once the old process has ended, or is silent."""
    node.push(attempt=3, started_timestamp_seconds=1_000.0, finished=finished)
    requeued = {"attempt": 0, "started_timestamp_seconds": 2_000.0}
    if not finished:
        with pytest.raises(Superseded):
            node.push(**requeued)
        node.clock.seconds += SILENT_SECONDS

    assert node.push(**requeued)


@pytest.mark.parametrize("other", [OTHER, None, Peer(0), Peer(USER.uid, "a-container")])
def test_rank_belongs_to_whom_first_reported_it(node: Node, other: Peer | None) -> None:
    """Not another user, nor root, nor the same user in a container, nor nobody in particular
    can replace it, however new their process is.
    """
    node.push(USER, job_id="local")

    with pytest.raises(
        Forbidden, match="Rank 0 of job 'local' belongs to another user or container"
    ) as refusal:
        node.push(other, job_id="local", **NEWER)
    assert str(refusal.value).endswith("(uid 1000); set RANKSKEW_JOB_ID to a unique name.")
    assert node.push(other, job_id="mine")
    assert node.push(USER, job_id="local", **NEWER)
    with pytest.raises(Superseded):  # For one user the order of his processes decides.
        node.push(USER, job_id="local")


def test_rank_of_nobody_is_not_protected(node: Node) -> None:
    """A process without a uid cannot keep a user from his rank by claiming to be the newest."""
    newest = {"attempt": 9, "started_timestamp_seconds": 1e15}
    node.push(None, **newest)

    assert node.push(USER)
    with pytest.raises(Forbidden):
        node.push(None, **newest)
    assert [rank.owner for rank in node.store.ranks()] == [USER]


@pytest.mark.parametrize(
    ("next_one", "seconds"),
    [(OTHER, 300.1), (None, 300.1), (Peer(USER.uid, "pod"), SILENT_SECONDS)],
)
def test_silent_rank_goes_to_the_next(node: Node, next_one: Peer | None, seconds: float) -> None:
    """A restarted pod gets its rank soon; another user only when nobody can wait for it any more.

    A rank that is stuck in native code does not push, and must not lose its place for that. Who
    comes back after so long learns why nobody sees the rank.
    """
    node.push(USER, **NEWER)
    node.clock.seconds += seconds - 0.1
    with pytest.raises(Forbidden):
        node.push(next_one)

    node.clock.seconds += 0.1
    assert node.push(next_one)
    assert [rank.owner for rank in node.store.ranks()] == [next_one]
    if next_one == OTHER:
        with pytest.raises(Forbidden, match="uid 1001"):
            node.push(USER, **NEWER)


def test_stuck_rank_of_a_container_is_not_taken_for_a_dead_one(node: Node) -> None:
    """A restarted pod gets its rank once the old process is gone; root in any other does not."""
    with subprocess.Popen(["true"]) as ended:
        pass
    node.push(Peer(0, "pod", os.getpid()))
    node.clock.seconds += 300.0
    with pytest.raises(Forbidden):
        node.push(Peer(0, "stranger"), **NEWER)
    node.push(Peer(0, "pod", ended.pid))

    node.clock.seconds += SILENT_SECONDS
    assert node.push(Peer(0, "stranger"), **NEWER)


@pytest.mark.parametrize("other", [OTHER, Peer(0, "pod"), None])
def test_nobody_adds_a_rank_to_anothers_job(node: Node, other: Peer | None) -> None:
    """Its verdict and its size would be taken for those of the job, until all of it has ended.

    Then whoever comes next gets the place, even with a process that started earlier.
    """
    for rank in (0, 1):
        node.push(USER, rank=rank, **NEWER)
    for changes in ({"rank": 3}, {"rank": 8, "world_size": 9}, {"rank": 3, "finished": True}):
        with pytest.raises(Forbidden, match="Rank 0 of job 'llama' belongs to another user"):
            node.push(other, **changes)
    node.push(USER, rank=0, finished=True, **NEWER)
    with pytest.raises(Forbidden, match="Rank 1 of job 'llama'"):
        node.push(other, rank=0)

    node.push(USER, rank=1, finished=True, **NEWER)
    assert node.push(other, rank=0)
    assert node.store.ranks()[0].owner == other


def test_pods_of_one_job_share_it(node: Node) -> None:
    """In numeric order: rank 10 follows rank 9, not rank 1."""
    for rank in (10, 9, 1):
        assert node.push(Peer(0, f"pod-{rank}"), rank=rank, world_size=16)

    assert node.held() == [("llama", 1), ("llama", 9), ("llama", 10)]
    with pytest.raises(Forbidden):
        node.push(Peer(0, "pod-9"), rank=1, world_size=16)


def test_batch_job_takes_back_the_number_that_was_claimed_before(node: Node) -> None:
    """Numbers of batch jobs can be guessed; the job's own cgroup cannot be forged."""
    for rank in range(2):
        node.push(OTHER, job_id="77", rank=rank, finished=True)
    node.push(OTHER, job_id="78")

    assert node.push(Peer(USER.uid, "77"), job_id="77")
    assert node.held() == [("77", 0), ("78", 0)]
    with pytest.raises(Forbidden, match="uid 1000"):
        node.push(OTHER, job_id="77", rank=1)


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
    node: Node, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Ranks that a later run has no place for here are gone, neither silent nor finished."""
    node.run(range(4), **before)
    node.clock.seconds += 70.0
    after |= {"started_timestamp_seconds": 1_070.0, "heartbeat_timestamp_seconds": 1_130.0}
    node.run(range(2), **after)

    assert node.held() == [("llama", 0), ("llama", 1)]


def test_shrunk_job_of_the_same_attempt_leaves_no_dead_copies(node: Node) -> None:
    """Elastic ranks that shrink keep their attempt: those outside the new world are gone."""
    node.run(range(4))
    node.clock.seconds += 5.0
    new = {"world_size": 2, "started_timestamp_seconds": 1_062.0}
    node.run(range(2), heartbeat_timestamp_seconds=1_065.5, **new)
    assert len(node.held()) == 4  # They may push yet: whoever does is no dead copy.

    node.clock.seconds += SILENT_SECONDS - 5.0
    node.run(range(2), heartbeat_timestamp_seconds=1_065.5, **new)
    assert node.held() == [("llama", 0), ("llama", 1)]


@pytest.mark.parametrize("newer", [{"attempt": 1}, {"world_size": 3}])
def test_process_that_outlived_its_run_is_no_silent_rank(node: Node, newer: dict[str, Any]) -> None:
    """Where the old run's processes end while the new one's begin, they still leave no copies."""
    newer |= {"started_timestamp_seconds": 1_060.5}
    node.run(range(3), heartbeat_timestamp_seconds=1_060.5, **newer)
    node.clock.seconds += 5.0
    node.run([3])  # It takes long to end.
    assert len(node.held()) == 4

    node.clock.seconds += SILENT_SECONDS
    node.run(range(3), heartbeat_timestamp_seconds=1_075.5, **newer)
    assert node.held() == [("llama", 0), ("llama", 1), ("llama", 2)]


def test_silent_rank_of_this_run_or_of_another_user_stays(node: Node) -> None:
    """Another user's job of the same name is another run, however new it is."""
    node.run(range(4), USER)
    node.clock.seconds += 300.0
    node.run(range(3), USER)
    node.clock.seconds += 300.1
    node.run([0], OTHER, attempt=9, world_size=1)

    assert node.held() == [("llama", rank) for rank in range(4)]


def test_start_of_a_process_is_told_once(node: Node) -> None:
    """When the wall clock steps back in a run, none of its ranks began any later for that."""
    node.push()
    node.clock.seconds += 100.0
    node.push(heartbeat_timestamp_seconds=1_000.0)

    (rank,) = node.store.ranks()
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
    store.put(snapshot(job_id="after", finished=finished))
    wall.seconds -= hour
    monotonic.seconds += retention_seconds
    assert [each.snapshot.job_id for each in store.ranks()] == ["after", "llama"]
    monotonic.seconds += 0.1
    assert store.ranks() == []


def test_rank_that_died_before_the_group_was_formed_is_not_missing(node: Node) -> None:
    """Another process has its number now, here or on another node, and the others keep theirs."""
    for rank in range(4):
        node.beat(rank, 8)
    node.clock.seconds += SILENT_SECONDS + 5
    for rank in (0, 1, 2):
        node.beat(rank, 8)
    assert node.state() == ([0, 1, 2], [3], [], 8)
    node.clock.seconds += 1
    for rank in (0, 1, 2):
        node.beat(rank, 7, formed=node.wall - 0.5)

    assert node.state() == ([0, 1, 2], [], [], 7)


@pytest.mark.parametrize("set_back", [0.0, 3_600.0])
def test_rank_that_dies_in_the_new_group_is_missing(node: Node, set_back: float) -> None:
    """It reported in it once. The wall clock may be set back, and the group seem to be formed in
    the future: it is not of any time after the death.
    """
    for rank in range(3):
        node.beat(rank, 3, formed=START)
    node.began += set_back
    node.clock.seconds += SILENT_SECONDS
    for rank in (0, 1):
        node.beat(rank, 3, formed=START)

    assert node.state() == ([0, 1], [2], [], 3)


def test_every_process_may_get_the_number_of_another_one(node: Node) -> None:
    """Whichever of them says it first; nobody is refused, nothing is left."""
    for rank in range(4):
        node.beat(rank, 4)
    node.clock.seconds += 1
    new: dict[str, Any] = {"formed": node.wall, "started_timestamp_seconds": node.wall}
    # What was rank 3 is rank 2 now, and so on; rank 0 has died.
    for rank in (3, 2, 1):
        node.beat(rank - 1, 3, **new)
        assert node.beat(rank, 4, finished=True) == (rank == 3)
    node.clock.seconds += SILENT_SECONDS
    for rank in range(3):
        node.beat(rank, 3, **new)

    assert node.state() == ([0, 1, 2], [], [], 3)


def test_spare_takes_a_number_over_though_it_started_earlier(node: Node) -> None:
    """It waited since before the process began that it replaces, which may still report."""
    old: dict[str, Any] = {"formed": START, "started_timestamp_seconds": START}
    node.beat(1, 2, **old)
    node.clock.seconds += 1
    assert node.beat(1, 2, formed=node.wall, started_timestamp_seconds=START - 500, pid=2)
    with pytest.raises(Superseded):
        node.beat(1, 2, **old)
    assert not node.beat(1, 2, finished=True, **old)
    (held,) = node.store.ranks()

    assert held.snapshot.pid == 2


ALICE, BOB, CAROL = Peer(1000), Peer(1001), Peer(1002)


class Full(PushingNode):
    """One whose clock ticks with each push."""

    def __init__(self, **limits: int) -> None:
        super().__init__(RankLimits(**limits))

    def run(self, job_id: str, owner: Peer | None = None, **changes: object) -> bool:
        self.clock.seconds += 1
        return self.push(owner, job_id=job_id, **changes)


@pytest.mark.parametrize(
    ("limit", "second", "sentence"),
    [
        ("ranks", {"rank": 1}, "already has 1 ranks; .* --ranks.max"),
        ("jobs", {"job_id": "b"}, "already has 1 jobs; .* --ranks.jobs-max"),
        (
            "peer_groups",
            {"rank": 1, "peer_group": "b"},
            "already has 1 peer groups; .* --ranks.peer-groups-max",
        ),
    ],
)
def test_limits_refuse_the_newcomer_only(
    limit: str, second: dict[str, object], sentence: str
) -> None:
    node = Full(**{limit: 1})
    node.push(job_id="a")

    with pytest.raises(NoRoom, match=sentence):
        node.push(**({"job_id": "a"} | second))
    assert node.push(job_id="a")
    assert node.held() == [("a", 0)]


def test_known_rank_that_changes_its_group_needs_room_too() -> None:
    """Else one rank could name a new group with each push."""
    node = Full(peer_groups=1)
    for rank in (0, 1):
        node.push(rank=rank)
    with pytest.raises(NoRoom, match=r"--ranks\.peer-groups-max"):
        node.push(rank=1, peer_group="b")


def test_ranks_that_ended_make_room() -> None:
    """A full node still takes the next job: what finished goes first, then what fell silent."""
    node = Full(ranks=3)
    node.run("silent")
    node.clock.seconds += 301
    node.run("finished", finished=True)
    node.run("running")

    node.run("next")
    assert node.held() == [("finished", 0), ("next", 0), ("running", 0)]
    node.run("third")
    assert node.held() == [("next", 0), ("running", 0), ("third", 0)]
    with pytest.raises(NoRoom):
        node.run("fourth")


def test_user_without_a_place_gets_a_share_of_a_crowds() -> None:
    """Alice has all four jobs; Bob gets two of them, the last that began, and no more."""
    node = Full(ranks=16, jobs=4)
    for number in range(4):
        for rank in (0, 1):
            node.run(f"alice-{number}", ALICE, rank=rank)
    for number in range(2):
        node.run(f"bob-{number}", BOB)
    for job_id, owner in [("bob-2", BOB), *[("alice-3", ALICE)] * 50]:
        with pytest.raises(NoRoom, match="already has 4 jobs"):
            node.run(job_id, owner)

    assert {job for job, _ in node.held()} == {"alice-0", "alice-1", "bob-0", "bob-1"}


def test_nobody_gets_more_than_a_share_of_a_crowds() -> None:
    """Each of three users is sure of a third; Alice keeps what nobody else is entitled to."""
    node = Full(jobs=9)
    for number in range(8):
        node.run(f"alice-{number}", ALICE)
    node.run("carol", CAROL)
    for number in range(3):
        node.run(f"bob-{number}", BOB)
    with pytest.raises(NoRoom, match="already has 9 jobs"):
        node.run("bob-3", BOB)

    assert sum(job.startswith("alice") for job, _ in node.held()) == 5


def test_rank_gives_way_alone() -> None:
    """For one rank of Bob's, one of Alice's goes: the job that fills the node stays.

    More users than places do not take turns.
    """
    node = Full(ranks=3)
    for rank in range(3):
        node.run("alice", ALICE, rank=rank)
    node.run("bob", BOB)
    assert node.held() == [("alice", 0), ("alice", 1), ("bob", 0)]

    node = Full(jobs=1)
    node.run("alice", ALICE)
    with pytest.raises(NoRoom):
        node.run("bob", BOB)
    assert node.held() == [("alice", 0)]


def test_ranks_that_begin_are_limited_by_user() -> None:
    """Jobs that end as soon as they begin cannot fill a Prometheus with series."""
    node = Full(ranks=2)
    for number in range(8):
        node.run(f"job-{number}", ALICE, finished=True)
    with pytest.raises(NoRoom, match="8 ranks of this user started in the last minute"):
        node.run("job-8", ALICE)
    node.run("bob", BOB)
    node.clock.seconds += 60.0

    assert node.run("job-8", ALICE)


def test_any_number_of_users_takes_no_memory() -> None:
    """Whoever makes thousands of containers in a minute; a dry run does not copy what is known."""
    node = Full(ranks=2)
    tracemalloc.start()
    for number in range(5_000):
        node.clock.seconds += 0.001
        node.push(Peer(1000, f"container {number}"), job_id=f"job-{number}", finished=True)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    node.store.would_put(snapshot(job_id="others"), ALICE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 2**21
    assert peak - kept < 2**16
    assert node.run("others", ALICE)

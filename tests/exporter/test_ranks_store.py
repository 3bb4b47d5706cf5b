"""The rank store keeps the newest state of each rank for its owner, and shares its places."""

import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.limits import NoRoom, RankLimits
from exporter.ranks.store import SILENT_SECONDS, Forbidden, RankStore, Superseded
from tests.exporter.node import OTHER, USER, Clock, PushingNode
from tests.exporter.snapshots import snapshot

NEWER = {"started_timestamp_seconds": 2_000.0, "attempt": 1}
START = 1_000.0
ALICE, BOB = USER, OTHER


class Node(PushingNode):
    """One whose wall clock is known: it was 1,000 s when the node's own began."""

    def __init__(self, **limits: int) -> None:
        super().__init__(RankLimits(**limits))
        self.began = self.clock.seconds

    @property
    def wall(self) -> float:
        return START + self.clock.seconds - self.began

    def refused(self, kind: type[Exception], peer: Peer | None = None, /, **changes: object) -> str:
        """Return the sentence with which a push is refused."""
        with pytest.raises(kind) as caught:
            self.push(peer, **changes)
        return str(caught.value)

    def run(self, ranks: Iterable[int], owner: Peer | None = None, /, **changes: Any) -> list[bool]:
        """Let the processes of *ranks* push, as they do a minute after they began."""
        return [self.push(owner, **({"rank": rank, "world_size": 4} | changes)) for rank in ranks]

    def begin(self, job_id: str, owner: Peer | None = None, **changes: object) -> bool:
        """Let a rank of a job push a second later."""
        self.clock.seconds += 1
        return self.push(owner, job_id=job_id, **changes)

    def beat(
        self, ranks: Iterable[int], size: int, formed: float | None = None, **changes: Any
    ) -> list[bool]:
        """Let *ranks* of a group that was *formed* then push now."""
        times = {"heartbeat_timestamp_seconds": self.wall, "group_formed_timestamp_seconds": formed}
        return self.run(ranks, world_size=size, **times, **changes)

    def state(self) -> tuple[list[int], list[int], list[int], int | None]:
        """Return the ranks that beat, are silent, have finished, and the size of the job."""
        job = self.job()
        kinds = (job.beating, job.silent, job.finished)
        beating, silent, finished = ([rank.snapshot.rank for rank in kind] for kind in kinds)
        return beating, silent, finished, job.world_size


@pytest.fixture
def node() -> Node:
    return Node()


def test_newer_process_takes_over_at_its_first_push(node: Node) -> None:
    """Although its sequence starts over; an older one cannot, however silent its successor."""
    node.push(attempt=1, started_timestamp_seconds=1_000.0, sequence=50)
    older: dict[str, Any] = {"attempt": 1, "started_timestamp_seconds": 999.0}
    requeued: dict[str, Any] = {"attempt": 0, "started_timestamp_seconds": 2_000.0}
    for changes in (older, older | {"attempt": 0}, requeued):
        said = node.refused(Superseded, **changes)
        assert said.startswith("A newer process already reports rank 0 of job 'llama'")
    node.clock.seconds += SILENT_SECONDS
    node.refused(Superseded, **older)
    assert node.store.ranks()[0].snapshot.sequence == 50

    # A requeued job counts attempts from 0 again: once it is silent, its past locks nobody out.
    assert node.push(**requeued)
    assert node.push(sequence=1, **requeued | {"started_timestamp_seconds": 2_001.0})
    assert node.push(sequence=1, attempt=1, started_timestamp_seconds=900.0)


@pytest.mark.parametrize(
    ("other", "seconds"),
    [
        (OTHER, 300.1),
        (None, 300.1),
        (Peer(0), 300.1),
        # The same user in a container: a restarted pod gets its rank soon.
        (Peer(USER.uid, "pod"), SILENT_SECONDS),
    ],
)
def test_rank_belongs_to_whom_first_reported_it(
    node: Node, other: Peer | None, seconds: float
) -> None:
    """No other owner can take over a rank, however new the process, until it has long been silent.

    A rank that is stuck in native code does not push, and must not lose its place for that. An
    owner who comes back too late learns from the refusal who has the rank now.
    """
    # A process without a uid cannot keep a user from his rank.
    node.push(None, **NEWER)
    assert node.push(USER)
    said = node.refused(Forbidden, other, **NEWER)
    assert said.startswith("Rank 0 of job 'llama' belongs to another user or container")
    assert said.endswith("(uid 1000); set RANKSKEW_JOB_ID to a unique name.")
    assert node.push(other, job_id="mine")
    assert node.push(USER, **NEWER)
    # For one user the order of his processes decides.
    node.refused(Superseded, USER)

    node.clock.seconds += seconds - 0.1
    node.refused(Forbidden, other)
    node.clock.seconds += 0.1
    assert node.push(other)
    assert node.store.ranks()[0].owner == other
    if other == OTHER:
        assert "uid 1001" in node.refused(Forbidden, USER, **NEWER)


def test_containers_of_one_user_are_told_apart(node: Node) -> None:
    """A restarted pod gets its rank once the old process is gone; root in any other does not.

    Pods of one job share it, in numeric order: rank 10 follows rank 9, not rank 1.
    """
    with subprocess.Popen(["true"]) as ended:
        pass
    node.push(Peer(0, "pod", os.getpid()))
    node.clock.seconds += 300.0
    node.refused(Forbidden, Peer(0, "stranger"), **NEWER)
    node.push(Peer(0, "pod", ended.pid))
    node.clock.seconds += SILENT_SECONDS
    assert node.push(Peer(0, "stranger"), **NEWER)

    for rank in (10, 9, 1):
        assert node.push(Peer(0, f"pod-{rank}"), job_id="pods", rank=rank, world_size=16)
    assert node.held() == [("llama", 0), ("pods", 1), ("pods", 9), ("pods", 10)]
    node.refused(Forbidden, Peer(0, "pod-9"), job_id="pods", rank=1, world_size=16)


@pytest.mark.parametrize("other", [OTHER, None])
def test_nobody_adds_a_rank_to_anothers_job(node: Node, other: Peer | None) -> None:
    """A stranger's rank is refused until the job has ended: its verdict would pass for the job's.

    After that the next owner gets the place, even with a process that started earlier.
    """
    node.run([0, 1], USER, **NEWER)
    for changes in ({"rank": 3}, {"rank": 8, "world_size": 9}, {"rank": 3, "finished": True}):
        assert "Rank 0 of job 'llama'" in node.refused(Forbidden, other, **changes)
    node.run([0], USER, finished=True, **NEWER)
    assert "Rank 1 of job 'llama'" in node.refused(Forbidden, other, rank=0)

    node.run([1], USER, finished=True, **NEWER)
    assert node.push(other, rank=0)
    assert node.store.ranks()[0].owner == other


SLUID = "s5K1KKYAYG5D00"


@pytest.mark.parametrize("name", ["77", "77[2]", SLUID])
def test_batch_job_takes_back_the_number_that_was_claimed_before(node: Node, name: str) -> None:
    """Numbers of batch jobs can be guessed; the job's own cgroup cannot be forged."""
    node.run([0, 1], OTHER, job_id=name, finished=True)
    node.push(OTHER, job_id="8")

    assert node.push(Peer(USER.uid, name), job_id=name)
    assert node.held() == sorted([(name, 0), ("8", 0)])
    assert "uid 1000" in node.refused(Forbidden, OTHER, job_id=name, rank=1)


@pytest.mark.parametrize("first", [Peer(OTHER.uid, "sEKNKTV3WPV500"), OTHER])
def test_cgroup_of_another_name_takes_nothing_back(node: Node, first: Peer) -> None:
    """Where Slurm's cgroups have SLUIDs, a number is whose it was first, as any other name is.

    Whoever claims it after the job is refused, as with cgroups that have the number.
    """
    node.push(first, job_id="77")
    for rank in (0, 1):
        said = node.refused(Forbidden, Peer(USER.uid, SLUID), job_id="77", rank=rank)
        assert "uid 1001" in said
    assert node.held() == [("77", 0)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"attempt": 1, "world_size": 2}),
        # Elastic ranks that shrink keep their attempt.
        ({}, {"world_size": 2}),
        # A requeued job counts attempts from 0 again.
        ({"attempt": 3}, {}),
        ({"attempt": 3, "finished": True}, {}),
    ],
)
def test_restart_with_fewer_ranks_leaves_no_dead_copies(
    node: Node, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Ranks that a later run has no place for here are gone, neither silent nor finished.

    One that takes long to end may push yet, and is gone as soon as it is silent.
    """
    node.run(range(4), **before)
    node.clock.seconds += SILENT_SECONDS
    node.run([3], **before)
    node.clock.seconds += 5.0
    after |= {"started_timestamp_seconds": node.wall, "heartbeat_timestamp_seconds": node.wall}
    node.run(range(2), **after)
    assert (("llama", 3) in node.held()) is ("finished" not in before)

    node.clock.seconds += SILENT_SECONDS
    node.run(range(2), **after)
    assert node.held() == [("llama", 0), ("llama", 1)]
    # Those of the same run stay, whatever another user's job of that name does.
    node.clock.seconds += 300.1
    node.run([0], **after)
    assert len(node.held()) == 2
    node.run([0], OTHER, attempt=9, world_size=1)
    assert node.held() == [("llama", 0), ("llama", 1)]


def test_rank_is_forgotten_after_its_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the monotonic clock: when the wall clock jumps, none disappears or becomes immortal."""
    monotonic = Clock()
    monkeypatch.setattr(time, "monotonic", monotonic)
    store = RankStore()
    for finished, seconds in ((True, 300.0), (False, 3_600.0)):
        store.put(snapshot(finished=finished))
        monotonic.seconds += seconds
        assert len(store.ranks()) == 1
        monotonic.seconds += 0.1
        assert store.ranks() == []


def test_rank_is_missing_only_in_the_group_in_which_it_died(node: Node) -> None:
    """Once the group is formed anew, another process has the number, here or on another node.

    After the wall clock is set back, a group may seem to be formed in the future: it does not count
    as formed after the death.
    """
    node.beat(range(4), 8)
    node.clock.seconds += SILENT_SECONDS + 5
    node.beat(range(3), 8)
    assert node.state() == ([0, 1, 2], [3], [], 8)
    node.clock.seconds += 1
    formed = node.wall - 0.5
    node.beat(range(3), 7, formed)
    assert node.state() == ([0, 1, 2], [], [], 7)

    node.began += 3_600.0
    node.clock.seconds += SILENT_SECONDS
    node.beat(range(2), 7, formed)
    assert node.state() == ([0, 1], [2], [], 7)


def test_every_process_may_get_the_number_of_another_one(node: Node) -> None:
    """Ranks may swap numbers in any order of their pushes; none is refused, no copy is left.

    The new process may be a spare that is older than the process that it replaces.
    """
    old: dict[str, Any] = {"formed": START, "started_timestamp_seconds": START}
    node.beat(range(4), 4, **old)
    node.clock.seconds += 1
    new: dict[str, Any] = {"formed": node.wall, "started_timestamp_seconds": START - 500, "pid": 2}
    # What was rank 3 is rank 2 now, and so on; rank 0 has died.
    for rank in (3, 2, 1):
        node.beat([rank - 1], 3, **new)
        assert node.beat([rank], 4, finished=True, **old) == [rank == 3]
    with pytest.raises(Superseded):
        node.beat([1], 4, **old)
    node.clock.seconds += SILENT_SECONDS
    node.beat(range(3), 3, **new)

    assert node.state() == ([0, 1, 2], [], [], 3)
    assert {held.snapshot.pid for held in node.store.ranks()} == {2}


@pytest.mark.parametrize(
    ("limits", "second", "flag"),
    [
        ({"ranks": 2}, {"rank": 2}, "--ranks.max"),
        ({"jobs": 1}, {"job_id": "b"}, "--ranks.jobs-max"),
        # Else one rank could name a new group with each push.
        ({"peer_groups": 1}, {"peer_group": "b"}, "--ranks.peer-groups-max"),
    ],
)
def test_limits_refuse_the_newcomer_only(
    limits: dict[str, int], second: dict[str, object], flag: str
) -> None:
    node = Node(**limits)
    node.run([0, 1])
    said = node.refused(NoRoom, **second)

    (most,) = limits.values()
    assert said.startswith(f"This node already has {most} ")
    assert flag in said
    node.run([0, 1])
    assert node.held() == [("llama", 0), ("llama", 1)]


def test_ranks_that_ended_make_room() -> None:
    """A full node still takes the next job: what finished goes first, then what fell silent.

    But jobs that end as soon as they begin cannot fill a Prometheus with series.
    """
    node = Node(ranks=3)
    node.begin("silent")
    node.clock.seconds += 301
    node.begin("finished", finished=True)
    node.begin("running")
    node.begin("next")
    assert node.held() == [("finished", 0), ("next", 0), ("running", 0)]
    node.begin("third")
    assert node.held() == [("next", 0), ("running", 0), ("third", 0)]
    node.refused(NoRoom, job_id="fourth")

    node = Node(ranks=2)
    for number in range(8):
        node.begin(f"job-{number}", ALICE, finished=True)
    said = node.refused(NoRoom, ALICE, job_id="job-8")
    assert "8 ranks of this user started in the last minute" in said
    node.begin("bob", BOB)
    node.clock.seconds += 60.0
    assert node.begin("job-8", ALICE)


def test_user_without_a_place_gets_a_share_of_a_crowds() -> None:
    """Alice has all four, of Slurm; Bob gets two of them, the last that began, and no more."""
    node = Node(ranks=16, jobs=4)
    for number in range(4):
        for rank in (0, 1):
            node.begin(f"alice-{number}", Peer(ALICE.uid, str(number)), rank=rank)
    for number in range(2):
        node.begin(f"bob-{number}", BOB)
    for job_id, owner in [("bob-2", BOB), *[("alice-3", ALICE)] * 50]:
        assert "already has 4 jobs" in node.refused(NoRoom, owner, job_id=job_id)
    assert {job for job, _ in node.held()} == {"alice-0", "alice-1", "bob-0", "bob-1"}

    # For one rank of Bob's, one of Alice's goes: the job that fills the node stays.
    node = Node(ranks=3)
    node.run(range(3), ALICE)
    node.begin("bob", BOB)
    assert node.held() == [("bob", 0), ("llama", 0), ("llama", 1)]
    # More users than places do not take turns.
    node = Node(jobs=1)
    node.begin("alice", ALICE)
    node.refused(NoRoom, BOB, job_id="bob")

"""A node holds so many ranks, jobs, peer groups, and each user has a share of them."""

import tracemalloc

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.limits import NoRoom, RankLimits
from tests.exporter.node import PushingNode
from tests.exporter.snapshots import snapshot

ALICE, BOB, CAROL = Peer(1000), Peer(1001), Peer(1002)


class Node(PushingNode):
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
    node = Node(**{limit: 1})
    node.push(job_id="a")

    with pytest.raises(NoRoom, match=sentence):
        node.push(**({"job_id": "a"} | second))
    assert node.push(job_id="a")
    assert node.held() == [("a", 0)]


def test_known_rank_that_changes_its_group_needs_room_too() -> None:
    """Else one rank could name a new group with each push."""
    node = Node(peer_groups=1)
    for rank in (0, 1):
        node.push(rank=rank)
    with pytest.raises(NoRoom, match=r"--ranks\.peer-groups-max"):
        node.push(rank=1, peer_group="b")


def test_ranks_that_ended_make_room() -> None:
    """A full node still takes the next job: what finished goes first, then what fell silent."""
    node = Node(ranks=3)
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
    node = Node(ranks=16, jobs=4)
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
    node = Node(jobs=9)
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
    node = Node(ranks=3)
    for rank in range(3):
        node.run("alice", ALICE, rank=rank)
    node.run("bob", BOB)
    assert node.held() == [("alice", 0), ("alice", 1), ("bob", 0)]

    node = Node(jobs=1)
    node.run("alice", ALICE)
    with pytest.raises(NoRoom):
        node.run("bob", BOB)
    assert node.held() == [("alice", 0)]


def test_ranks_that_begin_are_limited_by_user() -> None:
    """Jobs that end as soon as they begin cannot fill a Prometheus with series."""
    node = Node(ranks=2)
    for number in range(8):
        node.run(f"job-{number}", ALICE, finished=True)
    with pytest.raises(NoRoom, match="8 ranks of this user started in the last minute"):
        node.run("job-8", ALICE)
    node.run("bob", BOB)
    node.clock.seconds += 60.0

    assert node.run("job-8", ALICE)


def test_any_number_of_users_takes_no_memory() -> None:
    """Whoever makes thousands of containers in a minute; a dry run does not copy what is known."""
    node = Node(ranks=2)
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

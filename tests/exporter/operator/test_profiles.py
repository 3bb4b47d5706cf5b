"""Of a profile the exporter chooses the ranks and the step, and repeats what the ranks say."""

from typing import Any

import pytest

from exporter.operator.levels import Orders
from exporter.operator.orders import ProfileOrder
from exporter.operator.profiles import NoProfile, ProfileAnswer
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.snapshots import LATE, late, snapshot, verdict


class Node:
    """A node with ranks 0 to 3 of a job whose ranks 2 and 0 are late, at 10 steps a second."""

    def __init__(self, **changes: Any) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.profiles = Orders(self.store).profiles
        judged = verdict(late=(late(rank=0, gpus={"data": 0.5}), LATE))
        self.common = {"verdict": judged, "verdict_age_seconds": 1.0} | changes
        for rank in range(4):
            self.push(rank)

    def push(self, rank: int, **changes: Any) -> dict[str, int] | None:
        """Take in a snapshot as the ingest does; return what the rank is told."""
        self.clock.seconds += 0.1
        seconds = {"forward": 10.0}
        more = self.common | {"sequence": int(10 * self.clock.seconds)} | changes
        pushed = snapshot(**({"rank": rank, "stage_seconds": seconds, "steps": 100} | more))
        self.store.put(pushed)
        return self.profiles.order_for(pushed)

    def give(self, **order: Any) -> ProfileAnswer:
        return self.profiles.give(ProfileOrder("llama", **order))


def test_costliest_late_rank_and_a_healthy_neighbour() -> None:
    """Both are told of the same step some seconds ahead, until they say that they know."""
    node = Node()
    answer = node.give()

    assert answer == ProfileAnswer(rank=2, peer=1, start=140, peer_group="all", profiles={})
    told = {"start": 140, "steps": 5}
    assert [node.push(rank) for rank in range(4)] == [None, told, told, None]
    said = {"start": "140", "path": "", "problem": ""}
    assert [node.push(rank, profile=said) for rank in range(4)] == [None] * 4
    assert [node.push(rank, profile=said) for rank in range(4)] == [None] * 4


def test_same_order_says_how_it_goes() -> None:
    """Nothing is chosen anew: the command asks so until both are done."""
    node = Node()
    node.give()
    old = {"start": "40", "path": "/old", "problem": ""}
    done = {"start": "140", "path": "/tmp/t.json", "problem": ""}
    node.push(1, profile=done, steps=150)
    node.push(2, profile=old, steps=150)
    answer = node.give(rank=2, peer=1, start=140)

    assert (answer.start, answer.profiles) == (140, {"1": done})
    assert node.push(1, profile=done, steps=151) is None


def test_healthy_rank_of_the_same_group_on_the_node() -> None:
    """Without one the late rank is alone, and has a minute; a step may be named for the other."""
    node = Node()
    for rank in (1, 3):
        node.push(rank, peer_group="pp1")
    alone = node.give(rank=2)

    assert (alone.peer, alone.start, alone.peer_group) == (None, 700, "all")
    named = node.give(rank=3, start=700, steps=7)
    assert (named.rank, named.peer, named.start) == (3, None, 700)
    assert node.push(3) == {"start": 700, "steps": 7}
    assert node.give(rank=2, peer=3).peer == 3


def test_rank_that_is_furthest_decides() -> None:
    """Also with its steps whose device times were dropped: they are counted."""
    node = Node()
    node.push(1, steps=120, dropped_steps=30)

    assert node.give().start == 150 + 40 + 8


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ({"rank": 9}, "Rank 9 of job 'llama' does not report on this node"),
        ({"peer": 9}, "Rank 9 of job"),
        ({}, "No rank of job 'llama' is known to be late; name one"),
    ],
)
def test_what_cannot_be_done_is_said(order: dict[str, int], sentence: str) -> None:
    node = Node(verdict=None, verdict_age_seconds=None) if not order else Node()
    with pytest.raises(NoProfile, match=sentence):
        node.give(**order)


def test_late_rank_of_another_node_is_named() -> None:
    """The operator goes to that node."""
    node = Node(world_size=8, verdict=verdict(late=(late(rank=7),)))
    with pytest.raises(NoProfile, match=r"Rank 7 .* run this on its node"):
        node.give()
    with pytest.raises(NoProfile, match="No rank of job 'other'"):
        node.profiles.give(ProfileOrder("other"))


@pytest.mark.parametrize("steps", [0, 21])
def test_number_of_steps_has_a_limit(steps: int) -> None:
    with pytest.raises(ValueError, match="steps must be 1 to 20"):
        ProfileOrder("llama", steps=steps)

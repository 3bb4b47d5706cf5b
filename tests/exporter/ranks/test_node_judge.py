"""Without a judge, a node tells which of its ranks are late, as the fallback's rules would."""

from typing import Any

import pytest
from exporter.ranks.late_blocks import LateBlocks, late_stages

from exporter.ranks.store import RankStore
from rank_probe.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot, verdict

STEP = 1.0


def rank(number: int, data: float = 0.1, forward: float = 0.4, **changes: Any) -> Snapshot:
    """Return a rank with a block of steps of one second, whose rest is waiting."""
    block = {"data": data, "forward": forward, "sync": STEP - data - forward}
    told = {"rank": number, "world_size": 16, "block_steps": 64, "block_seconds": block}
    return snapshot(**(told | changes))


def peers(count: int, **changes: Any) -> list[Snapshot]:
    """Return healthy ranks 1 to *count*."""
    return [rank(number, **changes) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        ([], {}),
        (peers(4), {}),
        ([rank(0, data=0.2), *peers(3)], {0: "data"}),
        ([rank(0, forward=0.45), *peers(3)], {0: "forward"}),
        ([rank(0, data=0.13), *peers(3)], {}),  # 6 %
        ([rank(0, data=0.2), *peers(1)], {0: "data"}),
        ([rank(0, data=0.2)], {}),  # no peer on this node
        ([rank(0, data=0.2), *peers(3, peer_group="pp1")], {}),
    ],
)
def test_late_ranks_exceed_their_peers_here(ranks: list[Snapshot], late: dict[int, str]) -> None:
    """A rank is late by 8 % over its own group, in the stage of its excess."""
    found = late_stages(ranks)

    assert found == {("llama", number): stage for number, stage in late.items()}


def test_rank_of_a_lighter_group_is_not_late() -> None:
    """Nobody waits for a rank that is slower than its own group, but not than the heaviest."""
    heavy = [rank(number, data=0.3, peer_group="b") for number in (4, 5)]
    for each in heavy:
        each.block_seconds.update(sync=0.8)

    assert late_stages([rank(0, data=0.2), *peers(2)]) == {("llama", 0): "data"}
    assert late_stages([rank(0, data=0.2), *peers(2), *heavy]) == {}


def test_spread_of_the_faster_ranks_is_noise() -> None:
    """With five ranks or more, a rank that is within five times their spread is not late."""
    data = (0.13, 0.10, 0.09, 0.08, 0.07)
    noisy = [rank(number, data=seconds) for number, seconds in enumerate(data)]

    assert late_stages(noisy) == {}
    assert late_stages([rank(0, data=0.13), *peers(4, data=0.085)]) == {("llama", 0): "data"}


def test_rank_that_waits_like_its_victims_is_not_late() -> None:
    """Nobody waits for a rank that waits itself: its step is longer for another reason."""
    waits = rank(0)
    waits.block_seconds.update(data=0.2, sync=2.0)

    assert late_stages([waits, *peers(3)]) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"block_seconds": {"data": 0.2, "forward": 0.4}},
        {"block_seconds": {"sync": 0.0}},
        {"block_steps": 0, "block_seconds": {}},
        {"level": "off"},
    ],
)
def test_block_without_a_measured_wait_says_nothing(changes: dict[str, Any]) -> None:
    """A late rank could not be told from its victims."""
    assert late_stages([rank(0, data=0.2, **changes), *peers(3)]) == {}


def test_stage_that_peers_lack_is_all_excess() -> None:
    """What only the late rank does is compared with nothing."""
    extra = rank(0, data=0.2)
    extra.block_seconds.update(checkpoint=0.15, sync=0.25)

    assert late_stages([extra, *peers(3)]) == {("llama", 0): "checkpoint"}


class Node:
    """A node whose ranks push every five seconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.late = LateBlocks(self.store)
        self._sequence = 0

    def said(self, *ranks: Snapshot, rounds: int = 1, **changes: Any) -> list[str | None]:
        """Return what rank 0 is told, round after round."""
        answers = []
        for _ in range(rounds):
            self.clock.seconds += 5.0
            self._sequence += 1
            for each in ranks:
                told = rank(each.rank, sequence=self._sequence, **changes)
                told.block_seconds.update(each.block_seconds)
                self.store.put(told)
                stage = self.late.stage_of(told)
                answers += [stage] if told.rank == 0 else []
        return answers


def test_rank_is_late_once_it_was_for_two_minutes() -> None:
    """A single slow block names nobody."""
    node = Node()
    ranks = [rank(0, data=0.2), *peers(3)]

    # It is first seen after 15 s, with all of its peers.
    assert node.said(*ranks, rounds=30) == [None] * 26 + ["data"] * 4
    assert node.said(rank(0), *peers(3), rounds=3)[-1] is None
    assert node.said(*ranks, rounds=24) == [None] * 24


def test_stage_of_an_incident_stays() -> None:
    """What made the rank late first is what its lines are about."""
    node = Node()
    node.said(rank(0, data=0.2), *peers(3), rounds=30)

    assert node.said(rank(0, data=0.2, forward=0.6), *peers(3), rounds=3) == ["data"] * 3


def test_judge_speaks_alone() -> None:
    """Where the job has a verdict, the node says nothing."""
    node = Node()
    judged = {"verdict": verdict(), "verdict_age_seconds": 0.0}
    ranks = [rank(0, data=0.2), *peers(3)]

    assert node.said(*ranks, rounds=30, **judged) == [None] * 30


def test_rank_without_blocks_costs_nothing() -> None:
    """Nearly every push is of a job with a judge."""
    node = Node()
    node.late.stage_of(snapshot())

    assert node.late._looked is None

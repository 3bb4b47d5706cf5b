"""Where no join speaks, a node says which of its own ranks are late, and at what cost."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.ranks.jobs import NODE
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from rank_probe.judge.verdict import Verdict
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

STEP = 1.0


def rank(number: int, data: float = 0.1, forward: float = 0.4, **changes: Any) -> Snapshot:
    """Return a rank with a block of steps of one second, whose rest is waiting."""
    block = {"data": data, "forward": forward, "sync": STEP - data - forward}
    told = {"rank": number, "world_size": 16, "block_steps": 64, "block_seconds": block}
    return snapshot(**(told | changes))


def peers(count: int, **changes: Any) -> list[Snapshot]:
    """Return healthy ranks 1 to *count*."""
    return [rank(number, **changes) for number in range(1, count + 1)]


class Node:
    """A node whose ranks push every five seconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.jobs = NodeJobs(self.store)
        self._sequence = 0

    def push(self, *ranks: Snapshot, rounds: int = 1) -> None:
        """Let *ranks* push round after round, while somebody looks."""
        for _ in range(rounds):
            self.clock.seconds += 5.0
            self._sequence += 1
            for each in ranks:
                self.store.put(replace(each, sequence=self._sequence))
            self.jobs.now()

    def verdict(self) -> Verdict:
        [job] = self.jobs.now()
        held = job.verdict()
        assert held is not None
        assert held.judge == NODE
        return held.verdict


def judged(*ranks: Snapshot) -> Verdict:
    """Return what the node says after three minutes."""
    node = Node()
    node.push(*ranks, rounds=36)
    return node.verdict()


def stages(*ranks: Snapshot) -> dict[int, str]:
    """Return the stage of each late rank."""
    return {each.rank: each.stage for each in judged(*ranks).late}


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        (peers(4), {}),
        ([rank(0, data=0.2), *peers(3)], {0: "data"}),
        ([rank(0, forward=0.45), *peers(3)], {0: "forward"}),
        ([rank(0, data=0.13), *peers(3)], {}),  # 6 %
        ([rank(0, data=0.2), *peers(1)], {0: "data"}),
        ([rank(0, data=0.2), *peers(3, peer_group="pp1")], {}),
    ],
)
def test_late_ranks_exceed_their_peers_here(ranks: list[Snapshot], late: dict[int, str]) -> None:
    """A rank is late by 8 % over its own group, in the stage of its excess."""
    assert stages(*ranks) == late


def test_whole_job_waits_for_the_late_rank() -> None:
    """The cost is that of all ranks of the job, by stage, though only those here are compared.

    Two ranks that are equally late wait for no one, and all others wait for both.
    """
    found = judged(rank(0, data=0.15, forward=0.45, steps=700), *peers(3))
    [late] = found.late

    assert (found.step, found.ranks, found.absent, found.reason) == (700, {"all": 4}, 0, None)
    assert (found.step_seconds, found.slowdown) == pytest.approx((1.0, 1 / 0.9))
    assert found.gpus_lost == {"persistent": pytest.approx(1.5)}
    assert late.gpus == {"data": pytest.approx(0.75), "forward": pytest.approx(0.75)}
    assert (late.kind, late.stage, late.peer_group) == ("persistent", "data", "all")
    assert (late.ratio, late.since_seconds, late.steps) == pytest.approx((0.2, 170.0, 170))
    assert late.confidence == pytest.approx(0.1 / 0.04)
    found = judged(rank(0, data=0.2), rank(1, data=0.2), *peers(6)[1:])
    assert found.gpus_lost == {"persistent": pytest.approx(0.1 * 14)}


def test_ranks_are_those_that_were_compared() -> None:
    """Every node counts its own, so that the sum over nodes is on the job."""
    found = judged(rank(0, peer_group="pp1"), rank(1, peer_group="pp1"), *peers(7)[1:])

    assert found.ranks == {"all": 6, "pp1": 2}


def test_rank_of_a_lighter_group_is_not_late() -> None:
    """Nobody waits for a rank that is slower than its own group, but not than the heaviest."""
    heavy = [rank(number, data=0.3, peer_group="b") for number in (4, 5)]
    for each in heavy:
        each.block_seconds.update(sync=0.8)

    assert stages(rank(0, data=0.2), *peers(2)) == {0: "data"}
    assert stages(rank(0, data=0.2), *peers(2), *heavy) == {}


def test_spread_of_the_faster_ranks_is_noise() -> None:
    """With five ranks or more, a rank that is within five times their spread is not late."""
    data = (0.13, 0.10, 0.09, 0.08, 0.07)
    noisy = [rank(number, data=seconds) for number, seconds in enumerate(data)]

    assert stages(*noisy) == {}
    assert stages(rank(0, data=0.13), *peers(4, data=0.085)) == {0: "data"}


@pytest.mark.parametrize(
    ("block", "late"),
    [
        ({"data": 0.2, "sync": 2.0}, {}),  # It waits itself, as its victims do.
        (
            {"data": 0.2, "checkpoint": 0.15, "sync": 0.25},
            {0: "checkpoint"},
        ),  # Its peers have none.
    ],
)
def test_rank_is_compared_stage_by_stage(block: dict[str, float], late: dict[int, str]) -> None:
    odd = rank(0)
    odd.block_seconds.update(block)

    assert stages(odd, *peers(3)) == late


@pytest.mark.parametrize(
    "changes",
    [{"block_seconds": {"sync": 0.0}}, {"block_steps": 0, "block_seconds": {}}, {"level": "off"}],
)
def test_rank_without_a_block_is_not_compared(changes: dict[str, Any]) -> None:
    """Before the first whole block, and while off, there is nothing to compare."""
    assert stages(rank(0, **({"data": 0.2} | changes)), *peers(3)) == {}


def test_block_without_a_measured_wait_says_nothing() -> None:
    """A late rank could not be told from its victims, which is a reason of its own."""
    unsynced = [rank(number, block_seconds={"data": 0.2, "forward": 0.4}) for number in range(4)]
    found = judged(*unsynced)

    assert (found.reason, found.late, found.ranks) == ("no_sync", (), {"all": 4})


@pytest.mark.parametrize("ranks", [[rank(0)], [rank(0), rank(1, peer_group="pp1")], [snapshot()]])
def test_ranks_without_a_peer_here_are_not_judged(ranks: list[Snapshot]) -> None:
    """A node on which no two ranks do equal work cannot say anything."""
    node = Node()
    node.push(*ranks, rounds=36)

    assert [job.verdict() for job in node.jobs.now()] == [None]


def test_rank_is_late_once_it_was_for_two_minutes() -> None:
    """A single slow block names nobody, neither here nor to the rank itself."""
    node = Node()
    slow = [rank(0, data=0.2), *peers(3)]
    node.push(*slow, rounds=24)
    assert (node.verdict().late, node.jobs.late_stage(slow[0])) == ((), None)

    node.push(*slow, rounds=2)
    assert [each.rank for each in node.verdict().late] == [0]
    assert [node.jobs.late_stage(each) for each in slow] == ["data", None, None, None]

    node.push(rank(0), *peers(3), rounds=3)
    node.push(*slow, rounds=24)
    assert node.verdict().late == ()


def test_incident_near_the_limit_is_one() -> None:
    """It begins at 8 % and ends at 4 %; before it is told, it must stay above 8 %."""
    node = Node()
    node.push(rank(0, data=0.15), *peers(3), rounds=36)
    node.push(rank(0, data=0.125), *peers(3), rounds=12)
    assert [each.since_seconds for each in node.verdict().late] == [230.0]

    node.push(rank(0, data=0.115), *peers(3), rounds=3)
    node.push(rank(0, data=0.125), *peers(3), rounds=36)
    assert node.verdict().late == ()


def test_stage_of_an_incident_stays() -> None:
    """What made the rank late first is what its lines are about."""
    node = Node()
    node.push(rank(0, data=0.2), *peers(3), rounds=30)
    node.push(rank(0, data=0.2, forward=0.6), *peers(3), rounds=3)

    assert [each.stage for each in node.verdict().late] == ["data"]

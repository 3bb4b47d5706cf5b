"""What one node says of a job is what its own ranks say, what it remembers, and what it finds."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import JOIN, NODE, NodeJob
from exporter.ranks.late_enough import late_enough
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.judge.verdict import Verdict
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.node import PushingNode
from tests.exporter.snapshots import late, snapshot, verdict

POD, STRANGER = Peer(0, "pod"), Peer(0, "stranger")
BLOCK: dict[str, Any] = {
    "block_steps": 64,
    "block_seconds": {"data": 0.25, "forward": 0.5, "sync": 0.125},
}
JUDGED: dict[str, Any] = {
    "verdict": verdict(step_seconds=0.5),
    "verdict_age_seconds": 62.0,
    "join_coverage": 0.9,
}


def test_verdict_and_size_are_those_of_who_came_first() -> None:
    """Root in another container that claims a further rank cannot say that nobody is late.

    The verdict of another pod is better than none: the first pod may have its probe off.
    """
    node = PushingNode()
    node.push(POD, rank=2)
    node.clock.seconds += 1.0
    forged = verdict(step=9_999, late=())
    node.push(STRANGER, rank=3, world_size=4, verdict=forged, attempt=9)
    before = node.job().verdict()
    node.push(POD, rank=2, world_size=8, verdict=verdict())
    after = node.job().verdict()

    assert [held and held.verdict.step for held in (before, after)] == [9_999, 1_200]
    assert node.job().world_size == 8


SLOW: dict[str, Any] = {"block_seconds": {"forward": 55.0, "sync": 5.0}}
OLD: dict[str, Any] = {"verdict_age_seconds": 290.0}
UNMEASURED = verdict(step_seconds=None)


@pytest.mark.parametrize(
    ("judged", "enough", "judge"),
    [
        # It compares all ranks of the job, also those that have not read its verdict yet.
        ({}, 0.9, JOIN),
        # How much is enough is the operator's threshold.
        ({"join_coverage": 0.6}, 0.5, JOIN),
        ({"join_coverage": 0.89}, 0.9, NODE),
        # Steps of a minute give few verdicts; while warming up, the block shows how long they are.
        (OLD | {"verdict": verdict(step_seconds=60.0)}, 0.9, JOIN),
        (OLD | SLOW | {"verdict": UNMEASURED}, 0.9, JOIN),
        ({"verdict_age_seconds": 62.1}, 0.9, NODE),
        ({"verdict_age_seconds": 64.0, "verdict": UNMEASURED, "join_coverage": None}, 0.9, NODE),
        ({"verdict": None}, 0.9, NODE),
    ],
)
def test_join_judges_where_it_covers_the_job(
    judged: dict[str, Any], enough: float, judge: str
) -> None:
    """An old or partial verdict is used only where the node has none of its own.

    One that covers the job again is heard at once: what the node found does not stand against it.
    """
    node, alone = (
        PushingNode(thresholds=Thresholds({("llama", "join_coverage"): enough})) for _ in range(2)
    )
    node.push(rank=0, **(BLOCK | JUDGED | judged))
    node.push(rank=1, **BLOCK)
    before = node.job().verdict()
    node.push(rank=0, **BLOCK, **JUDGED)
    after = node.job().verdict()
    assert [held and held.judge for held in (before, after)] == [judge, JOIN]

    alone.push(**(JUDGED | judged))
    held = alone.job().verdict()
    assert (held and held.judge) == (None if judged == {"verdict": None} else JOIN)


class Node(PushingNode):
    """A node with one rank."""

    def ran(self, seconds: float, after: float = 0.0, **changes: Any) -> NodeJob:
        """Let time pass, and a rank push that has run for *seconds*."""
        self.clock.seconds += after
        times = {
            "started_timestamp_seconds": self.clock.seconds - seconds,
            "heartbeat_timestamp_seconds": self.clock.seconds,
        }
        self.push(**(times | changes))
        return self.job()


@pytest.mark.parametrize(("pause", "starting"), [(300.0, 307.0), (301.0, 2.0)])
def test_job_without_a_step_is_starting(pause: float, starting: float) -> None:
    """From the start of its first process until a rank has finished a step.

    A job that dies before that and is back within five minutes is still starting.
    """
    node = Node()
    assert node.ran(7.0, steps=0).starting_seconds == 7.0
    assert node.ran(2.0, after=pause, attempt=1, steps=0).starting_seconds == starting
    stepping = node.ran(3.0, after=1.0, attempt=1, steps=1)
    assert (stepping.starting_seconds, stepping.has_just_started) == (None, True)
    # One that has stepped and is back at once starts anew.
    assert node.ran(2.0, after=20.0, attempt=2, steps=0).starting_seconds == 2.0
    assert not node.ran(303.0, after=301.0, attempt=2, steps=1).has_just_started
    # A probe that is off counts none, and what has ended does not start.
    for changes in ({"level": "off"}, {"finished": True}):
        assert Node().ran(7.0, steps=0, **changes).starting_seconds is None


STEP = 1.0


def with_block(number: int, data: float = 0.1, forward: float = 0.4, **changes: Any) -> Snapshot:
    """Return a rank with a block of steps of one second, whose rest is waiting."""
    block = {"data": data, "forward": forward, "sync": STEP - data - forward}
    told = {"rank": number, "world_size": 16, "block_steps": 64, "block_seconds": block}
    return snapshot(**(told | changes))


def peers(count: int, **changes: Any) -> list[Snapshot]:
    """Return healthy ranks 1 to *count*."""
    return [with_block(number, **changes) for number in range(1, count + 1)]


class JudgingNode(PushingNode):
    """A node whose ranks push every five seconds."""

    def rounds(self, *ranks: Snapshot, rounds: int = 1) -> None:
        """Let *ranks* push round after round, while somebody looks."""
        for _ in range(rounds):
            self.clock.seconds += 5.0
            self._sequence += 1
            for each in ranks:
                self.store.put(replace(each, sequence=self._sequence))
            self.jobs.now()

    def verdict(self) -> Verdict:
        held = self.job().verdict()
        assert held is not None
        assert held.judge == NODE
        return held.verdict


def judged(*ranks: Snapshot) -> Verdict:
    """Return what the node says after three minutes."""
    node = JudgingNode()
    node.rounds(*ranks, rounds=36)
    return node.verdict()


def block(**seconds: float) -> dict[str, Any]:
    return {"block_seconds": {"data": 0.2, "forward": 0.4, **seconds}}


HEAVY = [with_block(n, peer_group="b", **block(data=0.3, sync=0.8)) for n in (4, 5)]


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        (peers(4), {}),
        ([with_block(0, data=0.2), *peers(3)], {0: "data"}),
        ([with_block(0, forward=0.45), *peers(3)], {0: "forward"}),
        ([with_block(0, data=0.13), *peers(3)], {}),  # 6 %
        ([with_block(0, data=0.2), *peers(1)], {0: "data"}),
        ([with_block(0, data=0.2), *peers(3, peer_group="pp1")], {}),
        # It waits itself, as its victims do. Its peers have no such stage.
        ([with_block(0, **block(sync=2.0)), *peers(3)], {}),
        ([with_block(0, **block(checkpoint=0.15, sync=0.25)), *peers(3)], {0: "checkpoint"}),
        # Before the first whole block, while off, and without a measured wait, there is nothing to
        # compare: a late rank could not be told from its victims.
        ([with_block(n, block_seconds={"data": 0.2 - n / 20}) for n in range(4)], {}),
        ([with_block(0, block_seconds={"sync": 0.0}), *peers(3)], {}),
        ([with_block(0, block_steps=0, block_seconds={}), *peers(3)], {}),
        ([with_block(0, data=0.2, level="off"), *peers(3)], {}),
        # Nobody waits for a rank that is slower than its own group, but not than the heaviest.
        ([with_block(0, data=0.2), *peers(2)], {0: "data"}),
        ([with_block(0, data=0.2), *peers(2), *HEAVY], {}),
        # With five ranks or more, one within five times the spread of the faster is not late.
        ([with_block(n, data=each) for n, each in enumerate((0.13, 0.1, 0.09, 0.08, 0.07))], {}),
        ([with_block(0, data=0.13), *peers(4, data=0.085)], {0: "data"}),
    ],
)
def test_late_ranks_exceed_their_peers_here(ranks: list[Snapshot], late: dict[int, str]) -> None:
    """A rank is late by 8 % over its own group, in the stage of its excess."""
    assert {each.rank: each.stage for each in judged(*ranks).late} == late


def test_whole_job_waits_for_the_late_rank() -> None:
    """The cost is that of all ranks of the job, by stage, though only those here are compared.

    Two ranks that are equally late wait for no one, and all others wait for both.
    """
    found = judged(with_block(0, data=0.15, forward=0.45, steps=700), *peers(3))
    [late] = found.late

    assert (found.step, found.ranks, found.absent, found.reason) == (700, {"all": 4}, 0, None)
    assert (found.step_seconds, found.slowdown) == pytest.approx((1.0, 1 / 0.9))
    assert found.gpus_lost == {"persistent": pytest.approx(1.5)}
    assert late.gpus == {"data": pytest.approx(0.75), "forward": pytest.approx(0.75)}
    assert (late.kind, late.stage, late.peer_group) == ("persistent", "data", "all")
    assert (late.ratio, late.since_seconds, late.steps) == pytest.approx((0.2, 170.0, 170))
    assert late.confidence == pytest.approx(0.1 / 0.04)
    found = judged(with_block(0, data=0.2), with_block(1, data=0.2), *peers(6)[1:])
    assert found.gpus_lost == {"persistent": pytest.approx(0.1 * 14)}


def test_ranks_without_a_peer_here_are_not_judged() -> None:
    """A node on which no two ranks do equal work cannot say anything; each node counts its own."""
    unlike = with_block(1, peer_group="pp1")
    for ranks in ([with_block(0)], [with_block(0), unlike], [snapshot()]):
        node = JudgingNode()
        node.rounds(*ranks, rounds=36)
        assert node.job().verdict() is None
    assert judged(with_block(0), unlike, *peers(3)[1:]).ranks == {"all": 3, "pp1": 1}


def test_rank_is_late_once_it_was_for_two_minutes() -> None:
    """A single slow block names nobody, neither here nor to the rank itself."""
    node = JudgingNode()
    slow = [with_block(0, data=0.2), *peers(3)]
    node.rounds(*slow, rounds=24)
    assert (node.verdict().late, node.jobs.late_stage(slow[0])) == ((), None)

    node.rounds(*slow, rounds=2)
    assert [each.rank for each in node.verdict().late] == [0]
    node.rounds(with_block(0, data=0.2, forward=0.6), *peers(3), rounds=3)
    assert [each.stage for each in node.verdict().late] == ["data"]  # What made it late first.
    assert [node.jobs.late_stage(each) for each in slow] == ["data", None, None, None]

    node.rounds(with_block(0), *peers(3), rounds=3)
    node.rounds(*slow, rounds=24)
    assert node.verdict().late == ()


def test_incident_near_the_limit_is_one() -> None:
    """It begins at 8 % and ends at 4 %; before it is told, it must stay above 8 %."""
    node = JudgingNode()
    node.rounds(with_block(0, data=0.15), *peers(3), rounds=36)
    node.rounds(with_block(0, data=0.125), *peers(3), rounds=12)
    assert [each.since_seconds for each in node.verdict().late] == [230.0]

    node.rounds(with_block(0, data=0.115), *peers(3), rounds=3)
    node.rounds(with_block(0, data=0.125), *peers(3), rounds=36)
    assert node.verdict().late == ()


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ([], []),
        ([{}], [2]),
        ([{"ratio": 0.03}], []),
        ([{"ratio": 0.031}], [2]),
        ([{"kind": "node", "ratio": 0.031}], [2]),
        ([{"kind": "pauses", "ratio": 0.01}], [2]),
        ([{"kind": "mild"}], []),
        ([{"kind": "unsynced"}], []),
        ([{"gpus": {"data": 0.63}}], []),
        ([{"gpus": {"data": 0.64}}], [2]),
        # Together they are worth a word; one that costs a tenth of the costliest is not.
        ([{"rank": 1, "gpus": {"data": 0.4}}, {"gpus": {"data": 0.3}}], [1, 2]),
        ([{"rank": 1}, {"gpus": {"data": 0.1}}], [1]),
        ([{"rank": 1, "kind": "mild", "gpus": {"data": 10.0}}, {}], []),
        # What ranks do for all is quiet until it costs a twentieth; the late are counted apart.
        ([{"kind": "duty", "gpus": {"eval": 3.19}}], []),
        ([{"kind": "duty", "gpus": {"eval": 3.2}}], [2]),
        ([{"rank": 0, "kind": "duty", "gpus": {"eval": 3.1}}, {"gpus": {"data": 0.9}}], [2]),
        ([{"rank": 0, "kind": "duty", "gpus": {"eval": 3.2}}, {"gpus": {"data": 0.6}}], [0]),
    ],
)
def test_rank_is_told_if_it_costs_enough(ranks: list[dict[str, Any]], names: list[int]) -> None:
    """The excess, the share of the costliest and the share of the job's GPUs all count."""
    found = late_enough([late(**each) for each in ranks], 64, Thresholds().value)

    assert sorted(found) == names

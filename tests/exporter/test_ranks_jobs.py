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
from tests.exporter.live_node import rows
from tests.exporter.node import PushingNode
from tests.exporter.snapshots import lates, numbered, snapshot, verdict

POD, STRANGER = Peer(0, "pod"), Peer(0, "stranger")


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


# The age of the join's verdict, its coverage and step time, the step time in the node's own block,
# and the coverage that the operator requires | who judges.
JUDGES = """
age=62 coverage=.5 step=.5 | join
age=62 coverage=.3 step=.5 enough=.3 | join
age=62 coverage=.49 step=.5 | node
age=62.1 coverage=.9 step=.5 | node
# Steps of a minute give few verdicts; while warming up, the block shows how long they are.
age=290 coverage=.9 step=60 | join
age=290 coverage=.9 block=60 | join
age=64 block=.9 | node
"""


@pytest.mark.parametrize(("join", "judge"), rows(JUDGES))
def test_join_judges_where_it_covers_the_job(join: str, judge: str) -> None:
    """An old or partial verdict is used only where the node has none of its own.

    A verdict that covers the job again is used at once, whatever the node found.
    """
    known = {name: float(value) for name, _, value in (w.partition("=") for w in join.split())}
    seconds = known.get("block", 0.9)
    block = {"block_steps": 64, "block_seconds": {"data": seconds - 0.1, "sync": 0.1}}
    judged: dict[str, Any] = {
        "verdict": verdict(step_seconds=known.get("step")),
        "verdict_age_seconds": known["age"],
        "join_coverage": known.get("coverage"),
    }
    enough = {("llama", "join_coverage"): known.get("enough", 0.5)}
    node = PushingNode(thresholds=Thresholds(enough))
    node.push(rank=0, **judged)
    alone = node.job().verdict()
    node.clock.seconds += 10.0
    # It compares all ranks of the job; one that has left it has no verdict, and says no more.
    node.push(rank=0, **judged, **block)
    node.push(rank=1, **block, join_coverage=0.0)
    before = node.job().verdict()
    node.push(rank=0, **block, verdict=verdict(), verdict_age_seconds=0.0)
    after = node.job().verdict()

    assert [held and held.judge for held in (alone, before, after)] == [JOIN, judge, JOIN]
    assert (after and after.age_seconds) == 0.0


class Node(PushingNode):
    """A node that is asked after each round of pushes whether a rank is late; nobody scrapes it."""

    def ran(self, seconds: float, after: float = 0.0, **changes: Any) -> NodeJob:
        """Let time pass, and a rank push that has run for *seconds*."""
        self.clock.seconds += after
        times = {
            "started_timestamp_seconds": self.clock.seconds - seconds,
            "heartbeat_timestamp_seconds": self.clock.seconds,
        }
        self.push(**(times | changes))
        return self.job()

    def rounds(self, ranks: str, rounds: int = 1) -> None:
        """Let *ranks* push every five seconds."""
        for _ in range(rounds):
            self.clock.seconds += 5.0
            self._sequence += 1
            for each in with_blocks(ranks):
                self.store.put(replace(each, sequence=self._sequence))
            self.jobs.late_stage(each)

    def verdict(self) -> Verdict:
        """Return who is late, as this node judges it."""
        held = self.job().verdict()
        assert held is not None
        assert held.judge == NODE
        return held.verdict

    def late_for(self) -> list[tuple[str, float]]:
        """Return stage and time of those that are late."""
        return [(each.stage, each.since_seconds) for each in self.verdict().late]


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


def with_blocks(text: str) -> list[Snapshot]:
    """Return the ranks of `RANK[-LAST] [GROUP] [off] [STAGE=SECONDS ...]; ...` of a job of 16.

    A healthy one loads data for 0.1 s, computes for 0.4 s, and waits for the rest of a second. One
    that has `only` what is named has no other stage.
    """
    found = []
    for rank, words in numbered(text):
        seconds = {} if "only" in words else {"data": 0.1, "forward": 0.4}
        seconds |= {name: float(s) for name, _, s in (word.partition("=") for word in words) if s}
        if "only" not in words:
            seconds.setdefault("sync", 1.0 - sum(seconds.values()))
        group = next((word for word in words if word.startswith("pp")), "all")
        level = "off" if "off" in words else "stages"
        changes = {"rank": rank, "peer_group": group, "level": level, "block_seconds": seconds}
        found.append(snapshot(world_size=16, block_steps=64 if seconds else 0, **changes))
    return found


LATE = """
1-4 |
# A node on which no two ranks do equal work cannot say anything.
0 data=.2; 1 pp1 | no judge
0 only | no judge
0 data=.2; 1-3 | 0 data
0 forward=.45; 1-3 | 0 forward
0 data=.13; 1-3 |
0 data=.2; 1 | 0 data
0 data=.2; 1-3 pp1 |
# It waits itself, as its victims do. Its peers have no such stage.
0 data=.2 sync=2; 1-3 |
0 data=.2 checkpoint=.15; 1-3 | 0 checkpoint
# Before the first whole block, while off, and without a measured wait, there is nothing to compare:
# a late rank could not be told from its victims.
0 only data=.2; 1 only data=.15; 2 only data=.1 |
0 only sync=0; 1-3 |
0 only forward=0 sync=1; 1 only forward=0 sync=1 | no judge
0 only forward=1e-310 sync=1; 1 only forward=1e-310 sync=1 | no judge
0 only; 1-3 |
0 off data=.2; 1-3 |
# Nobody waits for a rank that is slower than its own group, but not than the heaviest.
0 data=.2; 1-2; 4-5 pp1 data=.3 sync=.8 |
# With five ranks or more, one within five times the spread of the faster is not late.
0 data=.13; 1; 2 data=.09; 3 data=.08; 4 data=.07 |
0 data=.13; 1-4 data=.085 | 0 data
"""


@pytest.mark.parametrize(("ranks", "late"), rows(LATE))
def test_late_ranks_exceed_their_peers_here(ranks: str, late: str) -> None:
    """A rank is late by 8 % over its own group, in the stage of its excess."""
    node = Node()
    node.rounds(ranks, 30)
    held = node.job().verdict()
    found = [f"{each.rank} {each.stage}" for each in held.verdict.late] if held else ["no judge"]

    assert found == ([late] if late else [])


def test_whole_job_waits_for_the_late_rank() -> None:
    """The cost is that of all ranks of the job, by stage, though only those here are compared.

    Two ranks that are equally late wait for no one, and all others wait for both.
    """
    node = Node()
    node.rounds("0 data=.15 forward=.45; 1-3; 9 pp1", 36)
    found = node.verdict()
    [late] = found.late

    assert (found.step, found.ranks, found.absent) == (100, {"all": 4, "pp1": 1}, 0)
    assert (found.step_seconds, found.slowdown) == pytest.approx((1.0, 1 / 0.9))
    assert found.gpus_lost == {"persistent": pytest.approx(1.5), "shared": 0.0}
    assert late.gpus == {"data": pytest.approx(0.75), "forward": pytest.approx(0.75)}
    assert (late.kind, late.stage, late.peer_group) == ("persistent", "data", "all")
    assert (late.ratio, late.since_seconds, late.steps) == pytest.approx((0.2, 170.0, 170))
    assert late.confidence == pytest.approx(0.1 / 0.04)
    node.rounds("0-1 data=.2; 2-6", 30)
    assert node.verdict().gpus_lost == {"persistent": pytest.approx(0.1 * 14), "shared": 0.0}
    node.rounds("0-4 data=.4", 30)
    assert node.verdict().gpus_lost["shared"] == pytest.approx(0.4 * 16)


def test_incident_begins_after_two_minutes_and_ends_at_half_of_the_limit() -> None:
    """A rank is reported only if it stays more than 8 % late; a single slow block is not enough."""
    node, slow = Node(), "0 data=.2; 1-3"
    node.rounds(slow, 24)
    assert node.late_for() == []
    node.rounds(slow, 2)
    node.rounds("0 data=.2 forward=.6; 1-3", 3)
    assert node.late_for() == [("data", 140.0)]  # What made it late first.
    node.rounds("0 data=.125; 1-3", 12)
    assert node.late_for() == [("data", 200.0)]
    told = [node.jobs.late_stage(each) for each in with_blocks(slow)]
    assert told == ["data", None, None, None]

    node.rounds("0 data=.115; 1-3", 3)
    node.rounds("0 data=.125; 1-3", 36)
    assert node.late_for() == []


ENOUGH = """
2 ratio=.03 |
2 ratio=.031 | 2
2 pauses ratio=.01 | 2
2 mild |
2 gpus=.63 |
2 gpus=.64 | 2
# Together they are worth a word; one that costs a tenth of the costliest is not.
1 gpus=.4; 2 gpus=.3 | 1 2
1; 2 gpus=.1 | 1
1 mild gpus=10; 2 |
# What ranks do for all is quiet until it costs a twentieth; the late are counted apart.
2 duty gpus=3.19 |
2 duty gpus=3.2 | 2
0 duty gpus=3.1; 2 gpus=.9 | 2
0 duty gpus=3.2; 2 gpus=.6 | 0
"""


@pytest.mark.parametrize(("ranks", "told"), rows(ENOUGH))
def test_rank_is_told_if_it_costs_enough(ranks: str, told: str) -> None:
    """The excess, the share of the costliest and the share of the job's GPUs all count."""
    found = late_enough(lates(ranks), 64, Thresholds().value)

    assert sorted(found) == [int(each) for each in told.split()]

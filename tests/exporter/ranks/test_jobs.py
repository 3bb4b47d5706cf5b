"""What one node says of a job is what the job's own ranks say, and what the node remembers."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import JOIN, NODE, NodeJob, node_jobs
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
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
    clock = Clock()
    store = RankStore(clock=clock)
    store.put(snapshot(rank=2), POD)
    clock.seconds += 1.0
    forged = verdict(step=9_999, late=())
    store.put(snapshot(rank=3, world_size=4, verdict=forged, attempt=9), STRANGER)
    [before] = node_jobs(store.ranks(), clock())
    store.put(snapshot(rank=2, sequence=2, world_size=8, verdict=verdict()), POD)
    [job] = node_jobs(store.ranks(), clock())

    verdicts = [held and held.verdict.step for held in (before.verdict(), job.verdict())]
    assert verdicts == [9_999, 1_200]
    assert job.world_size == 8


def judge(*ranks: dict[str, Any], thresholds: Thresholds | None = None) -> str | None:
    """Return who judges the job of ranks with these *changes*."""
    store = RankStore(clock=Clock())
    for number, changes in enumerate(ranks):
        store.put(snapshot(**({"rank": number} | changes)))
    [job] = NodeJobs(store, thresholds).now()
    held = job.verdict()
    return None if held is None else held.judge


def test_join_judges_where_it_covers_the_job() -> None:
    """It compares all ranks of the job, also those that have not read its verdict yet.

    How much is enough is the operator's threshold. Steps of a minute give few verdicts; while
    warming up, the block shows how long they are.
    """
    enough = Thresholds({("llama", "join_coverage"): 0.5})
    old = BLOCK | JUDGED | {"verdict_age_seconds": 290.0}
    slow = {"block_seconds": {"forward": 55.0, "sync": 5.0}}

    assert judge(BLOCK | JUDGED, BLOCK) == JOIN
    assert judge(JUDGED) == JOIN
    assert judge({}) is None
    assert judge(BLOCK | JUDGED | {"join_coverage": 0.6}, BLOCK, thresholds=enough) == JOIN
    assert judge(old | {"verdict": verdict(step_seconds=60.0)}, BLOCK) == JOIN
    assert judge(old | slow | {"verdict": verdict(step_seconds=None)}, BLOCK) == JOIN


@pytest.mark.parametrize(
    "doubt",
    [
        {"verdict": None},
        {"join_coverage": 0.89},
        {"verdict_age_seconds": 62.1},
        {"verdict_age_seconds": 64.0, "verdict": verdict(step_seconds=None), "join_coverage": None},
    ],
)
def test_node_judges_where_no_verdict_covers_the_job(doubt: dict[str, Any]) -> None:
    """An old or partial verdict is used only where the node has none of its own."""
    assert judge(BLOCK | JUDGED | doubt, BLOCK) == NODE
    assert judge(JUDGED | doubt) == (None if doubt == {"verdict": None} else JOIN)


def test_join_that_covers_the_job_again_is_heard_at_once() -> None:
    """What the node found a moment ago does not stand against it."""
    store = RankStore(clock=Clock())
    jobs = NodeJobs(store)
    for number in (0, 1):
        store.put(snapshot(rank=number, **BLOCK))
    [before] = jobs.now()
    store.put(snapshot(rank=0, sequence=2, **BLOCK, **JUDGED))
    [after] = jobs.now()

    verdicts = [job.verdict() for job in (before, after)]
    assert [held and held.judge for held in verdicts] == [NODE, JOIN]


class Node:
    """A node with one rank, on a clock that the test turns."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.jobs = NodeJobs(self.store)
        self._sequence = 0

    def job(self, seconds: float = 0.0, run_seconds: float = 0.0, **changes: Any) -> NodeJob:
        """Let *seconds* pass, a rank push that has run for *run_seconds*, and somebody look."""
        self.clock.seconds += seconds
        self._sequence += 1
        pushed = snapshot(
            sequence=self._sequence,
            started_timestamp_seconds=self.clock.seconds - run_seconds,
            heartbeat_timestamp_seconds=self.clock.seconds,
        )
        self.store.put(replace(pushed, **changes))
        [job] = self.jobs.now()
        return job


def test_job_without_a_step_is_starting() -> None:
    """From the start of its first process until a rank has finished a step.

    A job that has stepped and is back at once starts anew.
    """
    node = Node()
    assert node.job(run_seconds=7.0, steps=0).starting_seconds == 7.0
    assert node.job(seconds=5.0, run_seconds=12.0, steps=0).starting_seconds == 12.0
    stepping = node.job(seconds=1.0, run_seconds=13.0, steps=1)
    assert (stepping.starting_seconds, stepping.has_just_started) == (None, True)
    again = node.job(seconds=20.0, run_seconds=2.0, attempt=1, steps=0)
    assert again.starting_seconds == 2.0
    later = node.job(seconds=301.0, run_seconds=303.0, attempt=1, steps=1)
    assert not later.has_just_started


@pytest.mark.parametrize(("pause", "starting"), [(300.0, 307.0), (301.0, 2.0)])
def test_start_that_is_repeated_is_the_same(pause: float, starting: float) -> None:
    """A job that dies before its first step and is back within five minutes is still starting."""
    node = Node()
    node.job(run_seconds=7.0, steps=0)
    again = node.job(seconds=pause, run_seconds=2.0, attempt=1, steps=0)

    assert again.starting_seconds == starting


@pytest.mark.parametrize("changes", [{"level": "off"}, {"finished": True}])
def test_rank_that_counts_no_steps_is_not_starting(changes: dict[str, Any]) -> None:
    """A probe that is off counts none, and what has ended does not start."""
    assert Node().job(steps=0, **changes).starting_seconds is None


def test_late_rank_here_is_as_late_as_now() -> None:
    """Those of other nodes are theirs to show; a verdict that was read earlier has aged."""
    said = verdict(late=(late(), late(rank=7)))
    job = Node().job(rank=2, verdict=said, verdict_age_seconds=2.0)

    assert [(rank.snapshot.rank, each.since_seconds) for rank, each in job.late()] == [(2, 32.0)]


def test_push_without_blocks_costs_nothing() -> None:
    """Nearly every push is of a job with a join."""
    jobs = NodeJobs(RankStore())

    assert jobs.late_stage(snapshot()) is None
    assert jobs._looked is None

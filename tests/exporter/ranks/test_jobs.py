"""What one node says of a job is what the job's own ranks say."""

from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.ranks.jobs import JOIN, NODE, node_jobs
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot, verdict

POD, STRANGER = Peer(0, "pod"), Peer(0, "stranger")


def test_verdict_and_size_are_those_of_who_came_first() -> None:
    """Root in another container that claims a further rank cannot say that nobody is late."""
    clock = Clock()
    store = RankStore(clock=clock)
    store.put(snapshot(rank=2), POD)
    clock.seconds += 1.0
    forged = verdict(step=9_999, late=())
    store.put(snapshot(rank=3, world_size=4, verdict=forged, attempt=9), STRANGER)
    store.put(snapshot(rank=2, sequence=2, world_size=8, verdict=verdict()), POD)
    [job] = node_jobs(store.ranks(), clock())
    spoken = job.verdict()

    assert spoken is not None
    assert (spoken.verdict.step, len(spoken.verdict.late)) == (1_200, 1)
    assert job.world_size == 8


def test_verdict_of_another_pod_is_better_than_none() -> None:
    """The first pod may have its probe off."""
    store = RankStore(clock=Clock())
    store.put(snapshot(rank=0), POD)
    store.put(snapshot(rank=1, verdict=verdict()), STRANGER)
    [job] = node_jobs(store.ranks(), 5_000.0)

    assert job.verdict() is not None


BLOCK: dict[str, Any] = {
    "block_steps": 64,
    "block_seconds": {"data": 0.25, "forward": 0.5, "sync": 0.125},
}
JUDGED: dict[str, Any] = {
    "verdict": verdict(step_seconds=0.5),
    "verdict_age_seconds": 62.0,
    "join_coverage": 0.9,
}


def judge(*ranks: dict[str, Any], thresholds: Thresholds | None = None) -> str | None:
    """Return who judges the job of ranks with these *changes*."""
    store = RankStore(clock=Clock())
    for number, changes in enumerate(ranks):
        store.put(snapshot(**({"rank": number} | changes)))
    [job] = NodeJobs(store, thresholds).now()
    spoken = job.verdict()
    return None if spoken is None else spoken.judge


def test_join_judges_where_it_speaks() -> None:
    """It compares all ranks of the job, also those that have not read its verdict yet."""
    assert judge(BLOCK | JUDGED, BLOCK) == JOIN
    assert judge(JUDGED) == JOIN
    assert judge({}) is None


def test_join_that_speaks_again_is_heard_at_once() -> None:
    """What the node found a moment ago does not stand against it."""
    store = RankStore(clock=Clock())
    jobs = NodeJobs(store)
    for number in (0, 1):
        store.put(snapshot(rank=number, **BLOCK))
    [before] = jobs.now()
    store.put(snapshot(rank=0, sequence=2, **BLOCK, **JUDGED))
    [after] = jobs.now()

    said = [job.verdict() for job in (before, after)]
    assert [spoken and spoken.judge for spoken in said] == [NODE, JOIN]


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


def test_coverage_that_is_enough_is_the_operators() -> None:
    """The threshold of the rules counts here too."""
    enough = Thresholds({("llama", "join_coverage"): 0.5})

    assert judge(BLOCK | JUDGED | {"join_coverage": 0.6}, BLOCK, thresholds=enough) == JOIN


def test_slow_steps_make_a_verdict_last() -> None:
    """Steps of a minute give few verdicts; while warming up, the block shows how long they are."""
    old = BLOCK | JUDGED | {"verdict_age_seconds": 290.0}
    slow = {"block_seconds": {"forward": 55.0, "sync": 5.0}}

    assert judge(old | {"verdict": verdict(step_seconds=60.0)}, BLOCK) == JOIN
    assert judge(old | slow | {"verdict": verdict(step_seconds=None)}, BLOCK) == JOIN

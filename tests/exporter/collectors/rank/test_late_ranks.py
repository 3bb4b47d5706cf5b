"""A late rank's own exporter shows how late it is, since when, and at what cost."""

from typing import Any

import pytest

from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.collectors.expose import shown
from tests.exporter.snapshots import late, snapshot, verdict

WALL = 1_700_000_000.0
SINCE = 'rankskew_late_since_timestamp_seconds{job_id="llama",peer_group="all",rank="2"}'


class Node:
    """A node whose ranks repeat one verdict, on clocks that the test turns."""

    def __init__(self) -> None:
        self.clock, self.wall = Clock(), Clock(WALL)
        self.store = RankStore(clock=self.clock)
        self.collector = LateRanksCollector(NodeJobs(self.store), "gpu-12", self.wall)
        self._sequence = 0

    def push(self, rank: int = 2, seconds: float = 0.0, **changes: Any) -> None:
        """Let *seconds* pass and *rank* push the verdict, which names rank 2."""
        self.wait(seconds)
        self._sequence += 1
        told = {"rank": rank, "sequence": self._sequence, "verdict": verdict()}
        self.store.put(snapshot(**(told | changes)))

    def wait(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.wall.seconds += seconds

    def shown(self) -> list[str]:
        return shown(self.collector)

    def since(self) -> float:
        """Return since when rank 2 is late, in seconds after the test began."""
        (told,) = [line for line in self.shown() if line.startswith(SINCE)]
        return float(told.rsplit(" ", 1)[1]) - WALL


def test_late_rank_is_told_with_its_cost() -> None:
    """How late, how, in which stage, at what cost by stage, and since when."""
    node = Node()
    node.push(verdict_age_seconds=2.0)

    assert node.shown() == [
        'rankskew_late_ratio{job_id="llama",kind="persistent",nodename="gpu-12",peer_group="all",'
        'rank="2",stage="data"} 0.45',
        'rankskew_late_gpus{job_id="llama",peer_group="all",rank="2",stage="data"} 0.75',
        'rankskew_late_gpus{job_id="llama",peer_group="all",rank="2",stage="forward"} 0.25',
        f"{SINCE} 1.699999968e+09",
    ]


def test_rank_that_pauses_is_told_with_its_period_and_length() -> None:
    """In numbers and in the words of the page."""
    node = Node()
    saves = {"kind": "duty", "stage": "checkpoint", "every_steps": 25, "pause_seconds": 1.02}
    node.push(verdict=verdict(late=(late(**saves),)))

    assert [line for line in node.shown() if line.startswith("rankskew_late_pause")] == [
        'rankskew_late_pause_seconds{job_id="llama",peer_group="all",rank="2",'
        'sentence="saves every 25 steps for 1.0 s"} 1.02',
        'rankskew_late_pause_steps{job_id="llama",peer_group="all",rank="2"} 25.0',
    ]


@pytest.mark.parametrize("changes", [{"rank": 3}, {"finished": True}])
def test_rank_of_another_node_or_that_is_gone_is_not_told_here(changes: dict[str, Any]) -> None:
    """Each late rank is exposed by its own node's exporter, while it beats."""
    node = Node()
    node.push(**changes)
    assert node.shown() == []

    node.push(sequence=9, started_timestamp_seconds=1_001.0)
    assert node.shown() != []
    node.clock.seconds += 10.0
    assert node.shown() == []


def test_rank_without_a_measured_wait_has_no_cost() -> None:
    """If it is unknown whether any rank waits, no GPU is counted as waiting."""
    node = Node()
    node.push(verdict=verdict(late=(late(kind="unsynced"),)))

    assert [line.split("{")[0] for line in node.shown()] == [
        "rankskew_late_ratio",
        "rankskew_late_since_timestamp_seconds",
    ]


def test_onset_does_not_jitter() -> None:
    """Rounds of the judge, of the rank and of the scrape tell one incident's onset as one."""
    node = Node()
    node.push(verdict_age_seconds=1.5)
    assert node.since() == -31.5

    for age, since in ((0.2, 32.0), (1.2, 31.5), (0.1, 34.0)):
        said = verdict(late=(late(since_seconds=since + node.wall.seconds - WALL),))
        node.push(seconds=1.0, verdict=said, verdict_age_seconds=age)
        assert node.since() == -31.5


def test_another_onset_is_told() -> None:
    """A rank that recovers and is late again, or gets a new onset, has another one.

    A verdict that was pushed a while ago is that much older.
    """
    node = Node()
    node.push()
    node.wait(5.0)
    assert node.since() == -30.0
    node.push(seconds=35.0, verdict=verdict(late=(late(since_seconds=10.0),)))
    assert node.since() == 30.0

    node.push(seconds=1.0, verdict=verdict(late=()))
    assert node.shown() == []
    node.push(seconds=1.0, verdict=verdict(late=(late(since_seconds=11.0),)))
    assert node.since() == 31.0


def test_late_rank_of_the_nodes_own_verdict_is_told_alike() -> None:
    """Where no join speaks, the rank that this exporter finds late has the same series."""
    node = Node()
    for _ in range(25):
        for rank, data in ((2, 0.25), (3, 0.125)):
            block = {"data": data, "forward": 0.375, "sync": 0.5 - data}
            node.push(rank, 2.5, verdict=None, block_steps=64, block_seconds=block)
        shown = node.shown()

    assert shown == [
        'rankskew_late_ratio{job_id="llama",kind="persistent",nodename="gpu-12",peer_group="all",'
        'rank="2",stage="data"} 0.25',
        'rankskew_late_gpus{job_id="llama",peer_group="all",rank="2",stage="data"} '
        "0.42857142857142855",
        f"{SINCE} 1.700000005e+09",
    ]

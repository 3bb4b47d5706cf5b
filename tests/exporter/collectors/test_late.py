"""A late rank's own exporter shows how late it is, why, in which line, and at what cost."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import Cause
from exporter.collectors.rank.late_causes import SENTENCE_CHARACTERS, LateCausesCollector
from exporter.collectors.rank.late_ranks import LateLinesCollector, LateRanksCollector
from exporter.evidence.late_causes import LateCauses, RankPlace
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


HERE = RankPlace("all", "node-7", "3", "GPU-3f6d", "4711")


def late_for(
    number: int = 1, job_id: str = "llama", found: LateCauses | None = None, **changes: Any
) -> LateCauses:
    """Return what is known of so many ranks, from 2 on, that are late for one cause."""
    cause = replace(Cause("gc", "", 0.5, "", "", "gc_ratio", 0.2, 0.1), **changes)
    found = found or LateCauses()
    for rank in range(2, number + 2):
        found.take((job_id, rank), cause, HERE, 0.0, 60.0)
    return found


def lines(found: LateCauses, name: str = "") -> list[str]:
    return shown(LateCausesCollector(found), f"rankskew_late_cause_{name}")


def test_figure_that_is_missing_is_absent() -> None:
    """A rank alone has nobody to be held against, and what a thread does has no number at all."""
    alone, unknown = late_for(peers_value=None), late_for(value=None, peers_value=None, share=0.0)

    assert [line.rsplit(" ", 1)[1] for line in lines(alone, "figure")] == ["0.2"]
    assert lines(unknown, "figure") == []
    assert [line.rsplit(" ", 1)[1] for line in lines(unknown, "share")] == ["0.0"]


def test_at_most_32_ranks_of_each_job_are_shown() -> None:
    """Whatever befalls a node with a thousand ranks, the page stays short, and no job is hidden."""
    found = late_for(2, "b", late_for(40, "a"))
    infos = lines(found, "info")

    assert [sum(f'job_id="{job}"' in line for line in infos) for job in "ab"] == [32, 2]
    assert len(lines(found)) == 4 * 34


def test_long_texts_are_cut() -> None:
    """At 256 characters, with a sign that something is missing; those as long as that are not."""
    (info,) = lines(late_for(sentence="s" * 256, first_action="a" * 257), "info")

    assert f'sentence="{"s" * SENTENCE_CHARACTERS}"' in info
    assert f'first_action="{"a" * 255}…"' in info


@pytest.mark.parametrize(
    ("changes", "after_seconds"),
    [({"late_lines": []}, 0.0), ({"finished": True}, 0.0), ({}, 10.0)],
    ids=["none", "ended", "silent"],
)
def test_what_a_rank_did_before_it_ended_is_no_line(
    changes: dict[str, Any], after_seconds: float
) -> None:
    """Nor what it did before it fell silent."""
    clock = Clock()
    store = RankStore(clock=clock)
    line = {"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.75}
    store.put(snapshot(**{"rank": 2, "late_lines": [line]} | changes))
    clock.seconds += after_seconds

    assert shown(LateLinesCollector(store)) == []

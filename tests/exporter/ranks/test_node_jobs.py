"""What a node remembers of its jobs: since when they have been starting, and who is late."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.ranks.jobs import NodeJob
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from tests.exporter.clock import Clock
from tests.exporter.snapshots import late, snapshot, verdict


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
        told = snapshot(
            sequence=self._sequence,
            started_timestamp_seconds=self.clock.seconds - run_seconds,
            heartbeat_timestamp_seconds=self.clock.seconds,
        )
        self.store.put(replace(told, **changes))
        [job] = self.jobs.now()
        return job


def test_job_without_a_step_is_starting() -> None:
    """From the start of its first process until a rank has finished a step."""
    node = Node()
    assert node.job(run_seconds=7.0, steps=0).starting_seconds == 7.0
    assert node.job(seconds=5.0, run_seconds=12.0, steps=0).starting_seconds == 12.0

    stepping = node.job(seconds=1.0, run_seconds=13.0, steps=1)
    assert (stepping.starting_seconds, stepping.has_just_started) == (None, True)


@pytest.mark.parametrize(("pause", "starting"), [(300.0, 307.0), (301.0, 2.0)])
def test_start_that_is_repeated_is_the_same(pause: float, starting: float) -> None:
    """A job that dies before its first step and is back within five minutes is still starting."""
    node = Node()
    node.job(run_seconds=7.0, steps=0)
    again = node.job(seconds=pause, run_seconds=2.0, attempt=1, steps=0)

    assert again.starting_seconds == starting


def test_start_after_steps_is_another() -> None:
    """A job that has stepped and is back at once starts anew."""
    node = Node()
    node.job(run_seconds=7.0, steps=0)
    node.job(seconds=1.0, run_seconds=8.0, steps=1)
    again = node.job(seconds=20.0, run_seconds=2.0, attempt=1, steps=0)

    assert again.starting_seconds == 2.0


def test_start_is_forgotten() -> None:
    """Five minutes after its first step a job has not just started."""
    node = Node()
    node.job(run_seconds=7.0, steps=0)
    job = node.job(seconds=301.0, run_seconds=308.0, steps=1)

    assert not job.has_just_started


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

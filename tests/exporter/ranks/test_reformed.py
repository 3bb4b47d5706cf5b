"""A process group that is formed anew leaves no rank of the one before it behind."""

import pytest

from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import SILENT_SECONDS, RankStore, Superseded
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

START = 1_000.0


class Node:
    """A store, and ranks that push to it at the same times by their clock as by its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = RankStore(clock=self.clock)
        self.began = self.clock.seconds
        self._sequence = 0

    @property
    def wall(self) -> float:
        return START + self.clock.seconds - self.began

    def push(self, rank: int, ranks: int, formed: float | None = None, **changes: object) -> bool:
        self._sequence += 1
        return self.store.put(
            snapshot(
                rank=rank,
                world_size=ranks,
                sequence=self._sequence,
                heartbeat_timestamp_seconds=self.wall,
                group_formed_timestamp_seconds=formed,
                **changes,
            )
        )

    def state(self) -> tuple[list[int], list[int], list[int], int | None]:
        """Return the ranks that beat, are silent, have finished, and the size of the job."""
        (job,) = node_jobs(self.store.ranks(), self.clock.seconds)
        kinds = (job.beating, job.silent, job.finished)
        beating, silent, finished = ([rank.snapshot.rank for rank in kind] for kind in kinds)
        return beating, silent, finished, job.world_size


def test_rank_that_died_before_the_group_was_formed_is_not_missing() -> None:
    """Another process has its number now, here or on another node, and the others keep theirs."""
    node = Node()
    for rank in range(4):
        node.push(rank, 8)
    node.clock.seconds += SILENT_SECONDS + 5
    for rank in (0, 1, 2):
        node.push(rank, 8)
    assert node.state() == ([0, 1, 2], [3], [], 8)
    node.clock.seconds += 1
    for rank in (0, 1, 2):
        node.push(rank, 7, formed=node.wall - 0.5)

    assert node.state() == ([0, 1, 2], [], [], 7)


def test_rank_that_dies_in_the_new_group_is_missing() -> None:
    """It reported in it once."""
    node = Node()
    for rank in range(3):
        node.push(rank, 3, formed=START)
    node.clock.seconds += SILENT_SECONDS
    for rank in (0, 1):
        node.push(rank, 3, formed=START)

    assert node.state() == ([0, 1], [2], [], 3)


def test_rank_that_dies_is_missing_though_the_wall_clock_was_set_back() -> None:
    """The group seems to be formed in the future then, and is not of any time after the death."""
    node = Node()
    for rank in range(3):
        node.push(rank, 3, formed=START)
    node.began += 3_600.0
    node.clock.seconds += SILENT_SECONDS
    for rank in (0, 1):
        node.push(rank, 3, formed=START)

    assert node.state() == ([0, 1], [2], [], 3)


def test_every_process_may_get_the_number_of_another_one() -> None:
    """Whichever of them says it first; nobody is refused, nothing is left."""
    node = Node()
    for rank in range(4):
        node.push(rank, 4)
    node.clock.seconds += 1
    formed = node.wall
    # What was rank 3 is rank 2 now, and so on; rank 0 has died.
    for rank in (3, 2, 1):
        node.push(rank - 1, 3, formed=formed, started_timestamp_seconds=formed)
        assert node.push(rank, 4, finished=True) == (rank == 3)
    node.clock.seconds += SILENT_SECONDS
    for rank in range(3):
        node.push(rank, 3, formed=formed, started_timestamp_seconds=formed)

    assert node.state() == ([0, 1, 2], [], [], 3)


def test_spare_takes_a_number_over_though_it_started_earlier() -> None:
    """It waited since before the process began that it replaces, which may still report."""
    node = Node()
    node.push(1, 2, formed=START, started_timestamp_seconds=START)
    node.clock.seconds += 1
    assert node.push(1, 2, formed=node.wall, started_timestamp_seconds=START - 500, pid=2)
    with pytest.raises(Superseded):
        node.push(1, 2, formed=START, started_timestamp_seconds=START)
    assert not node.push(1, 2, formed=START, started_timestamp_seconds=START, finished=True)
    (held,) = node.store.ranks()

    assert held.snapshot.pid == 2

"""Tests of the steps: what belongs to which, and when it is committed."""

import pytest

from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE
from rank_probe.measure.steps import Steps
from rank_probe.measure.wait_floor import WINDOW_SECONDS
from rank_probe.wire.stages import BACKWARD, DATA, OPTIMIZER, OTHER, SYNC
from tests.rank_probe.fake_time import FakeTime

MS = 1_000_000


class Loop:
    """A training loop in fake time, one call a step."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.wall = 1_000.0
        self.boundaries: list[int] = []
        self.steps = Steps(self._take, self.time, lambda: self.wall)
        self._begun = False

    def _take(self) -> list[int]:
        taken, self.boundaries = self.boundaries, []
        return taken

    def mark(self, mark: int, stage: int = OTHER) -> None:
        self.boundaries += (stage | mark, self.time())

    def spend(self, stage: int, milliseconds: float) -> None:
        self.mark(0, stage)
        self.time.pass_(int(milliseconds * MS))
        self.mark(0)

    def step(self, *, data: float = 5, wait: float = 2, after: float = 0) -> None:
        if not self._begun:
            self._begun = True
            self.mark(BEGIN)
        self.spend(DATA, data)
        self.spend(BACKWARD, 10)
        self.spend(SYNC, wait)
        self.mark(RELEASE)
        self.spend(OPTIMIZER, 1)
        self.spend(OTHER, after)
        self.mark(COMPLETE)


def test_delay_after_the_collective_belongs_to_the_next_step() -> None:
    """What a rank does after the release is charged to the step that it delays."""
    loop = Loop()
    loop.step(after=40)
    first = loop.steps.totals()
    loop.step()
    second = loop.steps.totals()

    assert first.nanoseconds[OTHER] == 0
    assert first.nanoseconds[OPTIMIZER] == 0
    assert second.nanoseconds[OTHER] == 40 * MS
    assert second.nanoseconds[OPTIMIZER] == 1 * MS


def test_counters_hold_whole_steps_only() -> None:
    """The running step is invisible until its end is known."""
    loop = Loop()
    loop.step()
    before = loop.steps.totals()
    loop.spend(DATA, 500)

    assert loop.steps.totals().nanoseconds == before.nanoseconds
    assert loop.steps.totals().steps == before.steps == 1


def test_stages_add_up_to_the_time_between_releases() -> None:
    """Ten steps' stages sum to the wall time from the first batch to the last release."""
    loop = Loop()
    for _ in range(10):
        loop.step(data=5, wait=2, after=3)

    # Each step is 5 + 10 + 2; the 1 + 3 after the release count from the second on.
    assert sum(loop.steps.totals().nanoseconds) == (10 * 17 + 9 * 4) * MS


def test_start_up_is_no_part_of_the_first_step() -> None:
    """Imports, model building and their collectives do not count."""
    loop = Loop()
    loop.spend(OTHER, 9_000)
    loop.spend(SYNC, 3_000)
    loop.mark(RELEASE)
    loop.step()

    assert sum(loop.steps.totals().nanoseconds) == 17 * MS


def test_start_up_collective_does_not_end_a_step_without_one() -> None:
    """A release before training is forgotten, so a loop without collectives counts right."""
    loop = Loop()
    loop.spend(SYNC, 3_000)
    loop.mark(RELEASE)
    loop.mark(BEGIN)
    loop.spend(DATA, 5)
    loop.mark(COMPLETE)

    assert loop.steps.totals().nanoseconds[DATA] == 5 * MS
    assert loop.steps.totals().nanoseconds[SYNC] == 0


def test_step_without_a_collective_ends_where_it_is_completed() -> None:
    """A single process has no release; its steps run from call to call."""
    loop = Loop()
    loop.mark(BEGIN)
    loop.spend(DATA, 5)
    loop.spend(OPTIMIZER, 1)
    loop.mark(COMPLETE)

    assert loop.steps.totals().nanoseconds[OPTIMIZER] == 1 * MS


def test_step_without_a_collective_may_follow_one_with_it() -> None:
    """An old release does not end a new step."""
    loop = Loop()
    loop.step()
    loop.spend(DATA, 30)
    loop.mark(COMPLETE)

    assert loop.steps.totals().nanoseconds[DATA] == 35 * MS


def test_busy_time_is_all_but_the_wait() -> None:
    """Busy seconds and their squares leave `sync` out."""
    loop = Loop()
    loop.step(data=5, wait=100)
    loop.step(data=25, wait=80)
    totals = loop.steps.totals()

    assert totals.busy_nanoseconds == (15 + 36) * MS  # The optimizer runs in the second step.
    assert totals.busy_seconds_squared == pytest.approx(0.015**2 + 0.036**2)


def test_floor_is_near_the_shortest_wait_of_the_last_minute() -> None:
    """The 2 % quantile of 100 waits of 1 to 100 ms is the third shortest."""
    loop = Loop()
    for wait in range(100, 0, -1):
        loop.step(wait=wait)

    assert loop.steps.floor_seconds() == pytest.approx(0.003)


def test_floor_forgets_what_is_older_than_a_minute() -> None:
    """Without a recent step there is no reading."""
    loop = Loop()
    assert loop.steps.floor_seconds() is None
    loop.step()
    assert loop.steps.floor_seconds() == pytest.approx(0.002)
    loop.time.pass_(int(WINDOW_SECONDS * 1e9))

    assert loop.steps.floor_seconds() is None


def test_last_step_time_is_absent_before_the_first_step() -> None:
    """No step yet is no reading, not 1970."""
    loop = Loop()
    assert loop.steps.totals().last_step_timestamp_seconds is None
    loop.step()

    assert loop.steps.totals().last_step_timestamp_seconds == 1_000.0


def test_time_of_the_last_step_follows_the_wall_clock_as_it_is_set() -> None:
    """When the node's clock is corrected, the last step stays as long ago as it was."""
    loop = Loop()
    loop.step()
    loop.time.pass_(2_000_000_000)
    loop.wall = 9_000.0

    assert loop.steps.totals().last_step_timestamp_seconds == pytest.approx(8_998.0)


def test_beginning_anew_drops_the_unfinished_step_only() -> None:
    """After a pause in the timing, whole steps stay counted and nothing of the pause is."""
    loop = Loop()
    loop.step()
    before = loop.steps.totals()
    loop.spend(DATA, 700)
    loop.mark(BEGIN)
    loop.step()

    after = loop.steps.totals()
    assert after.nanoseconds[DATA] - before.nanoseconds[DATA] == 5 * MS
    assert sum(after.nanoseconds) - sum(before.nanoseconds) == 17 * MS
    assert after.busy_seconds_squared == pytest.approx(2 * 0.015**2)


def test_elapsed_time_counts_from_the_last_boundary() -> None:
    """The stage of now is as old as its beginning, whether or not it has been added up."""
    loop = Loop()
    loop.mark(0, DATA)
    loop.time.pass_(7 * MS)
    assert loop.steps.elapsed_seconds() == pytest.approx(0.007)
    loop.time.pass_(MS)

    assert loop.steps.elapsed_seconds() == pytest.approx(0.008)


def test_kept_vectors_are_the_differences_between_steps() -> None:
    """Each whole step is told once, with its number, its end and its stages."""
    loop = Loop()
    kept = loop.steps.keep()
    loop.step(data=5)
    loop.step(data=25)
    vectors = kept.take()

    assert [vector.step for vector in vectors] == [1, 2]
    assert [vector.nanoseconds[DATA] for vector in vectors] == [5 * MS, 25 * MS]
    assert vectors[1].ended - vectors[0].ended == (1 + 25 + 10 + 2) * MS
    assert kept.take() == []


def test_folding_bit_by_bit_changes_nothing() -> None:
    """However the tape is cut into pieces, the sums are one."""
    loop, pieces = Loop(), Loop()
    for number in range(5):
        loop.step(data=number, after=2)
        pieces.step(data=number, after=2)
    whole = pieces.boundaries[:]
    pieces.boundaries.clear()
    for i in range(0, len(whole), 2):
        pieces.boundaries.extend(whole[i : i + 2])
        pieces.steps.fold()

    assert pieces.steps.totals() == loop.steps.totals()

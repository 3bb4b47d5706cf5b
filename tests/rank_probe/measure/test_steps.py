"""Tests of the steps: what belongs to which, and when it is committed."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, UNCUT, USED, packed
from rank_probe.measure.ledger import Ledger, PythonLedger, new_ledger
from rank_probe.measure.steps import Steps
from rank_probe.wire.stages import BACKWARD, DATA, OPTIMIZER, OTHER, STAGES, SYNC
from tests.rank_probe.fakes import FakeTime

MS = 1_000_000


class Loop:
    """A training loop in fake time, one call a step."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.wall = 1_000.0
        self.boundaries: list[int] = []
        self.steps = Steps(self._take, self.time, lambda: self.wall)
        self._begun = False

    def _take(self) -> bytes:
        taken, self.boundaries = self.boundaries, []
        return packed(taken)

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


def test_stages_add_up_to_the_time_between_releases() -> None:
    """Of whole steps, from the first batch to the last release; busy time is all but the wait."""
    loop = Loop()
    for data in (5, 25):
        loop.step(data=data, wait=2, after=3)
    loop.spend(DATA, 500)
    totals = loop.steps.totals()

    # The steps are 5 + 10 + 2 and 25 + 10 + 2; the 1 + 3 after the release count in the second.
    assert totals.steps == 2
    assert sum(totals.nanoseconds) == (17 + 37 + 4) * MS
    assert totals.busy_nanoseconds == (15 + 39) * MS


def test_start_up_is_no_part_of_the_first_step() -> None:
    """Neither its time nor its collectives: a loop without any counts from call to call."""
    loop = Loop()
    loop.spend(OTHER, 9_000)
    loop.spend(SYNC, 3_000)
    loop.mark(RELEASE)
    loop.mark(BEGIN)
    loop.spend(DATA, 5)
    loop.spend(OPTIMIZER, 1)
    loop.mark(COMPLETE)
    totals = loop.steps.totals()

    assert (totals.nanoseconds[DATA], totals.nanoseconds[OPTIMIZER]) == (5 * MS, 1 * MS)
    assert sum(totals.nanoseconds) == 6 * MS


def test_step_without_a_collective_may_follow_one_with_it() -> None:
    """An old release does not end a new step."""
    loop = Loop()
    loop.step()
    loop.spend(DATA, 30)
    loop.mark(COMPLETE)

    assert loop.steps.totals().nanoseconds[DATA] == 35 * MS


def test_time_of_the_last_step_follows_the_wall_clock_as_it_is_set() -> None:
    """When the node's clock is corrected, it stays as long ago as it was; before it, no reading."""
    loop = Loop()
    assert loop.steps.totals().last_step_timestamp_seconds is None
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


def test_elapsed_time_counts_from_the_last_boundary() -> None:
    """The stage of now is as old as its beginning, whether or not it has been added up."""
    loop = Loop()
    loop.mark(0, DATA)
    loop.time.pass_(7 * MS)
    assert loop.steps.totals().elapsed_seconds == pytest.approx(0.007)
    loop.time.pass_(MS)

    assert loop.steps.totals().elapsed_seconds == pytest.approx(0.008)


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


compiled = pytest.mark.skipif(
    new_ledger is PythonLedger, reason="the extension module is not built: there is no C compiler"
)


def boundaries() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return stages with any marks, and the time before each."""
    marks = [BEGIN, RELEASE, COMPLETE, USED | 1 << 11, UNCUT, 0, 0]
    mark = st.builds(
        lambda stage, some: stage | sum({*some}),
        st.integers(0, len(STAGES) - 1),
        st.lists(st.sampled_from(marks), max_size=3),
    )
    return st.lists(st.tuples(mark, st.integers(0, 10**12)), max_size=60)


def accounts(ledger: Ledger) -> dict[str, Any]:
    """Return all that a ledger says."""
    return {
        "since": ledger.since,
        "nanoseconds": tuple(ledger.nanoseconds),
        "committed": tuple(ledger.committed),
        "steps": ledger.steps,
        "last": ledger.last_completed,
    }


@compiled
@settings(deadline=None, max_examples=500)
@given(marks=boundaries(), first=st.integers(0, 60))
def test_ledgers_agree(marks: list[tuple[int, int]], first: int) -> None:
    """On any boundaries, added in two parts, with each step and each mark in the same order."""
    now, flat = 1_000, []
    for mark, before in marks:
        now += before
        flat += [mark, now]
    found: list[object] = []
    for new in (PythonLedger, new_ledger):
        ledger = new(1_000)
        told = [ledger.add(packed(part)) for part in (flat[: 2 * first], flat[2 * first :])]
        found.append((told, accounts(ledger)))

    assert found[0] == found[1]


@compiled
def test_stage_that_does_not_exist_is_refused() -> None:
    """It would be written behind the end of the ledger."""
    ledger = new_ledger(0)
    with pytest.raises(IndexError, match="no such stage: 15"):
        ledger.add(packed([15, 1]))


def test_interrupt_makes_no_time_count_twice() -> None:
    """It may arrive between two boundaries; in C it cannot."""

    def interrupted(_: bytes) -> Iterator[int]:
        yield from (DATA | BEGIN, 0, OTHER | COMPLETE, 5)
        raise KeyboardInterrupt

    ledger = PythonLedger(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rank_probe.measure.ledger.unpacked", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.add(b"")
    ledger.add(packed([OTHER, 8]))

    assert sum(ledger.nanoseconds) == 8

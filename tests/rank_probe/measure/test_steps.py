"""Tests of the steps as they are told, and of the two ledgers that count them."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.measure import events as e
from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, UNCUT, USED, packed
from rank_probe.measure.ledger import Ledger, PythonLedger, new_ledger
from rank_probe.wire.stages import DATA, OTHER, STAGES
from tests.rank_probe.measure.noted_loop import BACKWARDS, FETCH, MS, OPTIMIZE, STEP, Job


def test_last_step_and_the_stage_of_now_are_as_old_as_they_are() -> None:
    """On the wall clock as it is set now; before the first step there is no reading."""
    job = Job().run(*FETCH)
    assert job.steps.totals().last_step_timestamp_seconds is None
    job.run(*BACKWARDS, *OPTIMIZE, *FETCH, 7.0)
    job.wall = 9_000.0
    totals = job.steps.totals()

    assert totals.last_step_timestamp_seconds == pytest.approx(9_000 - 0.012, abs=1e-6)
    assert totals.elapsed_seconds == pytest.approx(0.007)


def test_kept_vectors_are_the_differences_between_steps() -> None:
    """Each whole step is told once, with its number, its end and its stages."""
    job = Job()
    kept = job.steps.keep()
    job.run(*STEP, e.FETCH, 25.0, e.FETCHED, *BACKWARDS, *OPTIMIZE, *FETCH)
    vectors = kept.take()

    assert [vector.step for vector in vectors] == [1, 2]
    assert [vector.nanoseconds[DATA] for vector in vectors] == [5 * MS, 25 * MS]
    assert vectors[1].ended - vectors[0].ended == (1 + 25 + 10 + 2) * MS
    assert kept.take() == []


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
@settings(deadline=None, max_examples=200)
@given(marks=boundaries(), first=st.integers(0, 60))
def test_ledgers_agree(marks: list[tuple[int, int]], first: int) -> None:
    """On any boundaries, in one part or two, with each step and each mark in the same order."""
    now, flat = 1_000, []
    for mark, before in marks:
        now += before
        flat += [mark, now]
    found = []
    for new in (PythonLedger, new_ledger):
        for parts in ([flat], [flat[: 2 * first], flat[2 * first :]]):
            ledger = new(1_000)
            told = [ledger.add(packed(part)) for part in parts]
            whole = [step for steps, _ in told for step in steps]
            settling = [mark for _, marks in told for mark in marks]
            found.append((whole, settling, accounts(ledger)))

    assert found == found[:1] * 4


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

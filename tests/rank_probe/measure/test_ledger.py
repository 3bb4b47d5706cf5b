"""Tests that the ledger in C is the ledger in Python; test_steps.py says what that is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, UNCUT, USED
from rank_probe.measure.ledger import Ledger, PythonLedger, new_ledger
from rank_probe.wire.stages import STAGES

pytestmark = pytest.mark.skipif(
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
    """Return all that a ledger tells."""
    return {
        "since": ledger.since,
        "nanoseconds": tuple(ledger.nanoseconds),
        "committed": tuple(ledger.committed),
        "steps": ledger.steps,
        "squared": ledger.busy_seconds_squared,
        "last": ledger.last_completed,
    }


@settings(deadline=None, max_examples=500)
@given(marks=boundaries(), first=st.integers(0, 60))
def test_ledgers_agree(marks: list[tuple[int, int]], first: int) -> None:
    """On any boundaries, added in two parts, with each step and each mark in the same order."""
    now, flat = 1_000, []
    for mark, before in marks:
        now += before
        flat += [mark, now]
    told: dict[Any, list[object]] = {PythonLedger: [], new_ledger: []}
    found = []
    for new, heard in told.items():
        ledger = new(1_000, lambda *step, heard=heard: heard.append(step), heard.append)
        ledger.add(flat[: 2 * first])
        ledger.add(flat[2 * first :])
        found.append(accounts(ledger))

    assert found[0] == found[1]
    assert told[PythonLedger] == told[new_ledger]


def test_stage_that_does_not_exist_is_refused() -> None:
    """It would be written behind the end of the ledger."""
    ledger = new_ledger(0, lambda *_: None, lambda _: None)
    with pytest.raises(IndexError, match="no such stage: 15"):
        ledger.add([15, 1])

"""Figures are remembered where they change, for as long as their window is."""

import pytest

from exporter.past import Past


def test_value_of_then_is_the_one_that_stood_when_the_window_began() -> None:
    """A change inside the window has not happened then; one before it has."""
    past = Past(60.0)
    for at, value in ((0.0, 1.0), (10.0, 1.0), (30.0, 2.0), (80.0, 2.0)):
        past.see("a", value, at)
    assert past.then("a") == (0.0, 1.0)

    past.see("a", 2.0, 90.0)
    assert past.then("a") == (30.0, 2.0)


def test_young_memory_compares_with_the_first_value() -> None:
    """What was before is not known, so there is no increase yet."""
    past = Past(60.0)
    past.see("a", 100.0, 0.0)

    assert past.increase("a", 103.0) == 3.0
    assert past.increase("b", 103.0) == 0.0


def test_counter_that_begins_with_its_first_event_has_increased() -> None:
    """An error is counted from 1 on, and that one counts for the length of the window."""
    past = Past(60.0)
    past.count("xid", 1.0, 0.0, first=0.0)
    assert past.increase("xid") == 1.0

    past.count("xid", 1.0, 60.0, first=0.0)
    assert past.increase("xid") == 0.0


@pytest.mark.parametrize(("first", "increase"), [(None, 3.0), (0.0, 5.0)])
def test_counter_that_begins_again_goes_on(first: float | None, increase: float) -> None:
    """It had grown by 3; whether the 2 that it begins with are new depends on where it begins."""
    past = Past(60.0)
    past.see("a", 5.0, 0.0)
    past.count("a", 8.0, 10.0, first)
    past.count("a", 2.0, 20.0, first)
    assert past.increase("a") == increase

    past.count("a", 2.0, 80.0, first)
    assert past.increase("a") == 0.0


def test_counter_may_begin_again_and_be_as_high_as_before() -> None:
    """Only who reads it knows."""
    past = Past(60.0)
    past.count("xid", 1.0, 0.0)
    past.begin_again()
    past.count("xid", 1.0, 10.0)

    assert past.increase("xid") == 1.0


@pytest.mark.parametrize("value", [7.0, 0.0])
def test_what_is_dropped_or_not_kept_starts_again(value: float) -> None:
    """Ranks and links that are gone leave nothing behind."""
    past = Past(60.0)
    past.see("a", 1.0, 0.0)
    past.see("b", 1.0, 0.0)
    past.drop("a")
    past.keep({"a"})

    assert past.increase("a", value) == past.increase("b", value) == 0.0

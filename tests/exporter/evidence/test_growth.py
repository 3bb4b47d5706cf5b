"""Counters grow between two readings, and never seem to when they begin again."""

from exporter.evidence.growth import Growth


def test_counter_that_is_new_has_not_grown() -> None:
    """What was counted before the first reading is nobody's."""
    grown = Growth()

    assert grown.of("steps", None) is None
    assert grown.of("steps", 1_000.0) is None
    assert grown.of("steps", 1_003.0) == 3.0
    assert grown.of("steps", 1_003.0) == 0.0


def test_counter_that_begins_again_has_not_grown() -> None:
    """After a restart it counts on from where it is now."""
    grown = Growth()
    found = [grown.of("reads", total) for total in (50.0, 20.0, 25.0)]

    assert found == [None, None, 5.0]


def test_counter_that_was_out_of_sight_is_new() -> None:
    """What it grew by in that time is not of the time since the last reading."""
    grown = Growth()
    found = [grown.of("reads", total) for total in (10.0, None, 600.0, 601.0)]

    assert found == [None, None, None, 1.0]


def test_each_of_several_counters_grows_by_itself() -> None:
    """One that begins again, or is new, hides none of the others."""
    grown = Growth()

    assert grown.of_each("links", None) == {}
    assert grown.of_each("links", {"4": 1.0, "5": 9.0}) == {}
    assert grown.of_each("links", {"4": 3.0, "5": 0.0, "6": 7.0}) == {"4": 2.0}
    assert grown.of_each("other", {"4": 9.0}) == {}


def test_one_of_several_that_comes_back_is_new() -> None:
    """Only the two worst links are read: which ones that are changes."""
    grown = Growth()
    found = [grown.of_each("links", each) for each in ({"4": 1.0}, {"5": 2.0}, {"4": 900.0})]

    assert found == [{}, {}, {}]

"""Of many devices the one that matters now is shown, and equal ones do not take turns."""

from exporter.collectors.node.busiest import Busiest


def test_first_look_shows_the_one_with_most_in_total() -> None:
    """Nothing has grown yet; a device that was never used is not shown."""
    assert Busiest().of({"a": 5.0, "b": 50.0, "c": 0.0}) == "b"
    assert Busiest().of({"a": 0.0}) is None
    assert Busiest().of({}) is None


def test_device_that_becomes_slow_is_shown_at_once() -> None:
    """What counts is how busy it is now, not the months before."""
    busiest = Busiest()
    busiest.of({"old": 9000.0, "new": 1.0})
    busiest.of({"old": 9000.1, "new": 1.0})

    assert busiest.of({"old": 9000.2, "new": 6.0}) == "new"


def test_equal_devices_do_not_take_turns() -> None:
    """Each change of what is shown begins new series."""
    busiest = Busiest()
    busiest.of({"a": 1.0, "b": 2.0})
    shown = [busiest.of({"a": 1.0 + 1.1 * look, "b": 2.0 + look}) for look in range(1, 9)]

    assert shown == ["b"] * 8


def test_device_that_is_gone_is_not_shown() -> None:
    """It leaves its place to another, and comes back as if it were new."""
    busiest = Busiest()
    busiest.of({"a": 1.0, "b": 9.0})

    assert busiest.of({"a": 2.0}) == "a"
    assert busiest.of({"a": 2.0, "b": 9.0}) == "a"


def test_counter_that_begins_again_is_not_work() -> None:
    """A mount that is made anew counts from 0."""
    busiest = Busiest()
    busiest.of({"a": 10.0, "b": 90.0})
    busiest.of({"a": 20.0, "b": 90.0})

    assert busiest.of({"a": 20.0, "b": 1.0}) == "a"

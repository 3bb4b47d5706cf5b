"""The picture of the house leaves out what follows, and no arrow of it leads back."""

from graphlib import CycleError

import pytest

from generators.listed.house import arrows, picture


def test_arrow_is_left_out_where_something_is_between() -> None:
    """Also where what is between is not shown itself: then the arrow goes past it."""
    needs = {"a.x": {"a.y", "a.z"}, "a.y": {"hidden"}, "hidden": {"a.z"}, "a.z": set[str]()}

    assert list(arrows(needs, ["a.x", "a.y", "a.z"])) == ["  a_x --> a_y", "  a_y --> a_z"]


def test_circle_has_no_picture() -> None:
    """The error names what needs each other."""
    with pytest.raises(CycleError, match=r"\['a', 'b', 'a'\]|\['b', 'a', 'b'\]"):
        list(arrows({"a": {"b"}, "b": {"a"}}, ["a", "b"]))


def test_picture_has_packages_and_rooms() -> None:
    """The exporter needs the probe, and in the probe measuring needs what is sent."""
    lines = picture().splitlines()

    assert "  exporter --> rank_probe" in lines
    assert '    rank_probe_measure["measure"]' in lines
    assert any(line.startswith("  rank_probe_measure --> ") for line in lines)

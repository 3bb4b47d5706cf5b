"""Of many devices the one that matters now is shown, and equal ones do not take turns."""

import pytest

from exporter.collectors.node.busiest import Busiest


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        # At first the one with most in total; one that was never used is not shown.
        ([{"a": 5.0, "b": 50.0, "c": 0.0}], ["b"]),
        ([{"a": 0.0}], [None]),
        ([{}], [None]),
        # One that becomes slow is shown at once, whatever was in the months before.
        ([{"old": n, "new": 1.0} for n in (9000.0, 9000.1)] + [{"old": 9000.2, "new": 6.0}], "new"),
        # Each change of what is shown begins new series.
        ([{"a": 1.0 + 1.1 * n, "b": 2.0 + n} for n in range(9)], ["b"] * 9),
        # One that is gone leaves its place, and comes back as if it were new.
        ([{"a": 1.0, "b": 9.0}, {"a": 2.0}, {"a": 2.0, "b": 9.0}], ["b", "a", "a"]),
        # A counter that begins again is not work, such as that of a mount that is made anew.
        ([{"a": 10.0, "b": 90.0}, {"a": 20.0, "b": 90.0}, {"a": 20.0, "b": 1.0}], "a"),
    ],
)
def test_busiest_of_late_is_shown(
    looks: list[dict[str, float]], shown: list[str | None] | str
) -> None:
    busiest = Busiest()
    found = [busiest.of(look) for look in looks]

    assert (found[-1] if isinstance(shown, str) else found) == shown

import pytest

from exporter.nvml.worker.xids import XidCounts


# Each name is a series: a fourth kind counts without one, the known ones continue. A program that
# fails in many ways leaves names for what breaks next.
@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        ([], {}),
        ([48, 63, 79, 119, 48], {"48": 2, "63": 1, "79": 1}),
        ([31, 13, 43, 45, 13, 31, 79, 74], {"31": 2, "79": 1, "74": 1}),
    ],
)
def test_kinds_have_a_bound_and_events_do_not(kinds: list[int], named: dict[str, int]) -> None:
    counts = XidCounts()
    for kind in kinds:
        counts.add(kind)

    assert (counts.events, counts.by_kind()) == (len(kinds), named)

"""The parts of the loss add up, in numbers and as they are printed."""

import pytest

from rankskew.diagnose.loss import NOT_LISTED, hundredths, loss, shared
from rankskew.diagnose.model import Part


def assert_adds_up(part: Part) -> None:
    if part.parts:
        assert sum(each.gpus for each in part.parts) == pytest.approx(part.gpus)
    for each in part.parts:
        assert_adds_up(each)


def test_parts_add_up_to_the_total() -> None:
    """By kind, then by late rank, then by stage; the ranks share what their kind costs."""
    late = {6: {"data": 1.6, "forward": 0.05}, 3: {"backward": 0.35}}
    found = loss({"persistent": 1.0, "rotating": 0.07, "common": 0.344, "group": 0.0}, late)

    assert_adds_up(found)
    assert found.gpus == pytest.approx(1.414)
    ranks = found.parts[0].parts
    assert [(rank.name, round(rank.gpus, 4)) for rank in ranks] == [
        ("rank 6", 0.825),
        ("rank 3", 0.175),
    ]


def test_printed_parts_add_up_too() -> None:
    """Rounding each for itself would print 0.33 three times below 1.00."""
    third = Part("lost", 1.0, tuple(Part(name, 1 / 3) for name in "abc"))

    assert sorted(part.gpus for part in hundredths(third).parts) == [0.33, 0.33, 0.34]
    # A kind that costs nothing has no line.
    little = hundredths(loss({"persistent": 1.0, "rotating": 0.001}, {}))
    assert [part.gpus for part in little.parts] == [1.0]
    assert shared(200, [66.6, 66.7, 66.7]) == [66, 67, 67]
    assert shared(1, [0.4, 0.8]) == [0, 1]
    assert shared(0, [0.6, 0.6]) == [0, 0]


def test_more_late_ranks_than_are_listed_have_a_part() -> None:
    """Ten have a part each; a judge lists 32 at most, and the others have cost the rest."""
    found = loss({"persistent": 10.0}, {rank: {"data": 0.25} for rank in range(32)})

    assert_adds_up(found)
    assert [(part.name, part.gpus) for part in found.parts[0].parts[10:]] == [
        ("22 more ranks", 5.5),
        (NOT_LISTED, 2.0),
    ]

"""The parts of the loss add up."""

import pytest

from rankskew.diagnose.findings import loss
from rankskew.diagnose.model import Part
from rankskew.diagnose.render import loss_section


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


def test_kind_that_costs_nothing_has_no_line() -> None:
    little = loss({"persistent": 1.0, "rotating": 0.001}, {6: {"data": 1.0}})

    assert loss_section("", little).rows == [
        ("1.00", "to late ranks"),
        ("1.00", "  rank 6"),
        ("1.00", "    data"),
    ]


def test_more_late_ranks_than_are_listed_have_a_part() -> None:
    """Ten have a part each; a judge lists 32 at most, and the others have cost the rest."""
    found = loss({"persistent": 10.0}, {rank: {"data": 0.25} for rank in range(32)})

    assert_adds_up(found)
    assert [(part.name, part.gpus) for part in found.parts[0].parts[10:]] == [("other ranks", 7.5)]

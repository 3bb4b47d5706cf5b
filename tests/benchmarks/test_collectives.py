"""The benchmark of collectives counts what was named, and compares block by block."""

from typing import Any

import pytest

from benchmarks.collectives import links as linked
from benchmarks.collectives.arms import compared
from benchmarks.collectives.links import Case, links

LINK = {"kind": "link", "ranks": [1, 3], "title": "link"}
OTHER = {"kind": "rank", "ranks": [2], "title": "rank"}


@pytest.mark.parametrize(
    ("expected", "named", "right"),
    [
        (("link", [1, 3]), [LINK], 2),
        (("link", [1, 3]), [LINK, OTHER], 0),
        (("link", [1, 3]), [], 0),
        (None, [], 2),
        (None, [OTHER], 0),
    ],
)
def test_right_is_the_planted_link_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, expected: Any, named: list[Any], right: int
) -> None:
    """A false alarm beside the right name is not right."""
    monkeypatch.setattr(linked, "CASES", [Case("c", lambda network: None, expected)])
    monkeypatch.setattr(linked, "measured", lambda case: {"named": named})
    (row,) = links(2)

    said = "; ".join(one["title"] for one in named) or "nothing"
    assert (row["right"], row["runs"], row["named"]) == (right, 2, said)


def test_ratio_is_that_of_the_median_block() -> None:
    """Each block is compared with its neighbour, so a slow minute on the machine cancels out."""
    row = compared([(1.1, 1.0), (11.0, 10.0), (2.2, 2.0), (9.0, 1.0), (1.0, 9.0)])

    assert row["ratio"] == pytest.approx(1.1)
    assert row["blocks"] == 5

"""What docs/scale.md says of several Prometheus follows from what was counted."""

from docs.figures import rows
from docs.shards_table import plan, sizing, travel


def test_few_series_travel_of_a_large_job() -> None:
    """Two or three per node and dozens per job and late rank, of millions that are scraped."""
    largest = max(rows("travel"), key=lambda row: row["ranks"])

    assert largest["ranks"] == 16_384
    assert largest["travelling"] <= 3 * largest["nodes"] + 100
    assert largest["travelling"] < largest["scraped series"] / 400


def test_tables_have_a_row_for_each_size() -> None:
    """And only a large job has several shards."""
    assert len(travel().splitlines()) == 2 + len(rows("travel"))
    shards = [line.split(" | ")[1] for line in sizing().splitlines()[2:6]]
    assert shards == ["no need", "no need", "no need", "2"]


def test_plan_adds_up() -> None:
    """The nodes of all shards are those of 100,000 ranks."""
    assert "100,000 / 8,192 = 13 with 961 nodes each" in plan()
    assert "2 × 12,500 nodes + 24 × 13 shards of one job + 26 of a late rank = 25,338" in plan()

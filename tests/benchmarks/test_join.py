"""The benchmark of the join runs, and what it measured was right."""

from benchmarks.join import world_rows


def test_simulated_ranks_are_joined() -> None:
    """Each part of a round has a figure; a wrong cost of the late rank would have raised."""
    rows = list(world_rows(8, rounds=2))

    assert [row["unit"] for row in rows] == ["ms"] * 5
    assert all(row["median"] >= 0 for row in rows)

"""The table of docs/accuracy.md: a row for each way to train, a cell for each place of a delay."""

from collections.abc import Sequence
from typing import Any

from docs.figures import result
from docs.markdown import table


def accuracy() -> str:
    """Return which delays were named, with the excess that was measured of what was planted."""
    found = result("accuracy")
    rows: Sequence[dict[str, Any]] = found["rows"]
    places = list(dict.fromkeys(row["in"] for row in rows))
    cells = [
        (arm, *(_cell(row) for row in rows if row["arm"] == arm), _waits(rows, arm))
        for arm in dict.fromkeys(row["arm"] for row in rows)
    ]
    named = sum(row["named"] for row in rows)
    machine = found["machine"]
    summary = (
        f"{named} of {len(rows)} delays were named with their rank and stage, "
        f"on {machine['cpus']} CPUs with torch {machine['torch']}."
    )
    return f"{summary}\n\n{table(('training', *places, 'sync: late rank, its peers'), cells)}"


def _cell(row: dict[str, Any]) -> str:
    excess = f"{row['by, ms']:.0f} of {row['planted, ms']:.0f} ms"
    if row["named"]:
        return excess
    return f"**rank {row['waits least']}, {row['furthest ahead in']}**: {excess}"


def _waits(rows: Sequence[dict[str, Any]], arm: str) -> str:
    """Return the range over the places."""
    mine = [row for row in rows if row["arm"] == arm]
    ranges = []
    for key in ("its wait, ms", "wait of its peers, ms"):
        values = [row[key] for row in mine]
        ranges.append(f"{min(values):.0f} to {max(values):.0f} ms")
    return ", ".join(ranges)

"""The rows of the table: what was measured, and the most that is allowed."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def row(what: str, measured: float, most: float | None = None) -> Row:
    """Return one row; *most* None: nothing is promised."""
    return {"what": what, "measured": measured, "most allowed": most}


def broken(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are above what is allowed."""
    return [
        each
        for each in rows
        if each["most allowed"] is not None and each["measured"] > each["most allowed"]
    ]

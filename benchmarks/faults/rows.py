"""The rows of the table: what was measured, and the most that is allowed."""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.report import RESULTS

Row = dict[str, Any]


def row(what: str, measured: float, most: float | None = None) -> Row:
    """Return one row; *most* None: nothing is promised."""
    return {"what": what, "measured": measured, "most allowed": most}


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return *rows*, and in their places those of the last result that were not measured again."""
    path = RESULTS / "faults.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {each["what"]: each for each in rows}
    return [*(measured.pop(each["what"], each) for each in before), *measured.values()]


def broken(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are above what is allowed."""
    return [
        each
        for each in rows
        if each["most allowed"] is not None and each["measured"] > each["most allowed"]
    ]

"""Text that others chose, made fit for a terminal, a log and a label."""

import json
from collections.abc import Mapping
from typing import Any


def printable(text: str, most: int | None = None) -> str:
    """Return at most *most* characters of *text*, with ? for each that cannot be printed."""
    return "".join(each if each.isprintable() else "?" for each in text[:most])


def as_document(kind: str, said: Mapping[str, Any]) -> str:
    """Return *said*, which has no NaN, after the name and version of its schema.

    docs/schemas has one of each *kind*. A version changes where a program could be misled; a new
    field changes none.
    """
    return json.dumps({"schema": f"{kind}/1", **said}, indent=2, allow_nan=False)

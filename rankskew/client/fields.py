"""Reads fields of JSON that another program has written, which may be anything."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from rank_probe.wire.text import printable


def number(value: Any) -> float | None:
    """Return *value* if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def text(value: Any) -> str | None:
    """Return *value* if it is text; what could move a terminal's cursor becomes a question mark."""
    return printable(value) if isinstance(value, str) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return *value* if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in *value*, none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

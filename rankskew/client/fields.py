"""Reads fields of JSON that another version of Rankskew, or another program, may have written."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from rank_probe.wire.text import printable


def number(value: Any) -> float | None:
    """Return *value* if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """Return *value* as a whole number, None if it is none; labels are text."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    found = number(value)
    return None if found is None else int(found)


def text(value: Any) -> str | None:
    """Return *value* if it is text; what could move a terminal's cursor becomes a question mark."""
    return printable(value) if isinstance(value, str) else None


def label(value: Any) -> str | None:
    """Return text or a number as text, None for nothing or an empty label."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text(value) or None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return *value* if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in *value*, none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """Return the texts in *value*, none if it is no list."""
    found = [text(each) for each in value] if isinstance(value, list) else []
    return [each for each in found if each]


def numbers(value: Any) -> dict[str, float]:
    """Return the numbers of an object by name."""
    found = {text(name) or "": number(each) for name, each in mapping(value).items()}
    return {name: each for name, each in found.items() if each is not None}

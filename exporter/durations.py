"""Durations in Prometheus notation: 5m, 1h30m, 500ms."""

import re
from typing import Final

UNIT_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "y": 31536000.0,
}
PART: Final = r"(\d+)(ms|s|m|h|d|w|y)"


def parse(text: str) -> float:
    """Return the seconds of a duration such as 1h30m; raises ValueError for anything else."""
    if not re.fullmatch(f"(?:{PART})+", text):
        raise ValueError(f"{text!r} is not a duration such as 5m, 1h30m or 500ms")
    return sum(int(number) * UNIT_SECONDS[unit] for number, unit in re.findall(PART, text))


def show(seconds: float) -> str:
    """Return *seconds* in the largest unit, up to a day, that divides it."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= UNIT_SECONDS[unit] and seconds % UNIT_SECONDS[unit] == 0:
            return f"{seconds / UNIT_SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"

"""Sizes, times and bandwidths for people."""

import re
from typing import Final

# What three digits would round up to 1000 of the smaller unit.
ROUNDED_UP: Final = 0.9995
_BINARY: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def parse_bytes(text: str) -> int:
    """Return the bytes in text such as `4096`, `4KiB` or `4M`; ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 4096, 4KiB or 256MiB")
    return int(found[1]) * _BINARY[found[2]]


def show_bytes(size_bytes: int) -> str:
    """Return `4 KiB` for 4096."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def show_seconds(seconds: float) -> str:
    """Return three digits and the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor * ROUNDED_UP:
            return f"{_three(seconds / factor)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def show_bandwidth(bytes_per_second: float) -> str:
    """Return three digits and the decimal unit that fits, as nccl-tests does with GB/s."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= factor * ROUNDED_UP:
            return f"{_three(bytes_per_second / factor)} {unit}"
    return f"{_three(bytes_per_second)} B/s"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

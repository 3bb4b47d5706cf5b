"""The node's /proc and /sys: small files that may be missing, unreadable or without a number."""

import re
from pathlib import Path
from typing import NamedTuple


class Mounts(NamedTuple):
    """Where the node's proc file system and sysfs are mounted."""

    procfs: Path
    sysfs: Path


def text_of(path: Path) -> str | None:
    """Return the file's text, stripped; None if it cannot be read.

    Any OSError counts as unreadable: a driver may refuse a file that it lists (EINVAL, EOPNOTSUPP),
    and a device may disappear between the listing and the read.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number_in(path: Path) -> int | None:
    """Return the integer that the file consists of; None for "N/A (no PMA)" and the like."""
    text = text_of(path)
    return int(text) if text is not None and re.fullmatch("[0-9]+", text) else None


def names_in(folder: Path) -> list[str]:
    """Return the entries of *folder*, sorted; empty if it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def bytes_by_name(meminfo: str) -> dict[str, int]:
    """Return the sizes in a meminfo file, of the node or a NUMA node, in bytes."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"(\S+):\s+(\d+) kB", meminfo)}


def numa_nodes(sysfs: Path) -> dict[str, Path]:
    """Return each NUMA node's folder by its number; empty on a machine without NUMA."""
    nodes = sysfs / "devices" / "system" / "node"
    found = (re.fullmatch("node([0-9]+)", name) for name in names_in(nodes))
    return {match[1]: nodes / match[0] for match in found if match}

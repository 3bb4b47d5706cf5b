"""The node's /proc, /sys and /dev, and its small files."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeMounts:
    """Where the node's proc file system and sysfs are mounted, and its devices."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")


def text_of(path: Path) -> str:
    """Return the file's text, stripped; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """Return the whole number that the file consists of; None for anything else."""
    text = text_of(path)
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None


def names_in(folder: Path) -> list[str]:
    """Return the entries of *folder*, sorted; empty if it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []

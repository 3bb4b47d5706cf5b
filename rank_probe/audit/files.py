"""The node's /proc, /sys and /dev, and its small files."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The most CPUs that Linux can be built for.
MOST_CPUS: Final = 8192


@dataclass(frozen=True, slots=True)
class Mounts:
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


def cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as 0-3,8; none if it is no such list."""
    cpus: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        cpus.update(range(int(first), min(int(last or first) + 1, MOST_CPUS)))
    return tuple(sorted(cpus))

"""The node's /proc, /sys and /dev."""

from dataclasses import dataclass
from pathlib import Path

from rank_probe.process import small_files


@dataclass(frozen=True, slots=True)
class NodeMounts:
    """Where the node's proc file system and sysfs are mounted, and its devices."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")


def text_of(path: Path) -> str:
    """Return the file's text, stripped; empty if it cannot be read."""
    return small_files.text_of(path) or ""

"""The node's /proc and /sys: small files that may be missing, unreadable or without a number."""

import re
from pathlib import Path
from typing import NamedTuple

from rank_probe.process.small_files import names_in


class Mounts(NamedTuple):
    """Where the node's proc file system and sysfs are mounted."""

    procfs: Path
    sysfs: Path


def bytes_by_name(meminfo: str) -> dict[str, int]:
    """Return the sizes in a meminfo file, of the node or a NUMA node, in bytes."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"(\S+):\s+(\d+) kB", meminfo)}


def numa_nodes(sysfs: Path) -> dict[str, Path]:
    """Return each NUMA node's folder by its number; empty on a machine without NUMA."""
    nodes = sysfs / "devices" / "system" / "node"
    found = (re.fullmatch("node([0-9]+)", name) for name in names_in(nodes))
    return {match[1]: nodes / match[0] for match in found if match}

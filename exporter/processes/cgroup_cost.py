"""How a process's cgroup is held back: its CPU quota, and tasks that wait for CPU, memory, I/O."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from rank_probe.process.small_files import beginning

MICROSECONDS: Final = 1_000_000
RESOURCES: Final = ("cpu", "io", "memory")
# Where this process sees its own cgroup namespace.
OWN: Final = Path("/sys/fs/cgroup")
# No runtime nests cgroups deeper than this, but a user may.
MOST_LEVELS: Final = 32
# A node has some hundred cgroups. Looking through these takes a second, once.
MOST_CGROUPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Throttling:
    """A CPU quota: how many of its periods have passed, and in how many it was used up."""

    periods: int
    throttled_periods: int


@dataclass(frozen=True, slots=True)
class CgroupCost:
    """*throttling* is of the innermost cgroup with a CPU quota, None if there is none.

    *pressure_seconds* has, by resource, the time in which at least one task waited for it.
    """

    throttling: Throttling | None = None
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)


class CgroupCosts:
    """Reads cgroups in the sysfs at *sysfs*, of processes in the proc file system at *procfs*.

    If our own cgroup namespace is not the node's, the paths in procfs are relative to it
    ("/../other").
    """

    def __init__(self, procfs: Path, sysfs: Path) -> None:
        self._procfs = procfs
        tree = sysfs / "fs" / "cgroup"
        # Version 2 is mounted beside version 1 on hybrid hosts.
        self._version_2 = tree / "unified" if (tree / "unified").is_dir() else tree
        self._version_1 = tree / "cpu"

    def path(self, pid: int) -> str:
        """Return the process's cgroups, as a key for cost(); '' if they cannot be read."""
        return _text(self._procfs / str(pid) / "cgroup")

    def cost(self, path: str) -> CgroupCost:
        """Return what is known of the cgroups in *path*, for either version."""
        throttling, pressure = None, {}
        for line in path.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, name = rest.partition(":")
            if number == "0":
                levels = list(self._levels(self._version_2, name))
                throttling = next(filter(None, map(_throttling, levels)), throttling)
                pressure = _pressure(levels[0]) if levels else {}
            elif "cpu" in controllers.split(","):
                levels = list(self._levels(self._version_1, name))
                throttling = next(filter(None, map(_throttling, levels)), throttling)
        return CgroupCost(throttling, pressure)

    def _levels(self, tree: Path, name: str) -> Iterator[Path]:
        """Yield the folder of cgroup *name* and those around it; none if it is not in sight."""
        parts = [part for part in name.split("/") if part]
        above = parts.count("..")
        if above:
            if self._own_parts is None or above > len(self._own_parts):
                return
            parts = [*self._own_parts[: len(self._own_parts) - above], *parts[above:]]
        if len(parts) <= MOST_LEVELS:
            for depth in range(len(parts), -1, -1):
                yield tree.joinpath(*parts[:depth])

    @cached_property
    def _own_parts(self) -> tuple[str, ...] | None:
        """The path of our own cgroup namespace on the node, which the kernel does not expose."""
        try:
            own = os.stat(OWN)
        except OSError:
            return None
        for number, (folder, _, _) in enumerate(os.walk(self._version_2)):
            if number >= MOST_CGROUPS:
                return None
            if _is_same(folder, own):
                return Path(folder).relative_to(self._version_2).parts
        return None


def _is_same(folder: str, other: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(folder), other)
    except OSError:
        return False


def _throttling(folder: Path) -> Throttling | None:
    # Read cpu.stat only if there is a quota: it makes the kernel add up all CPUs. Without a quota,
    # version 2 says max and version 1 says -1.
    quota = (_text(folder / "cpu.max") or _text(folder / "cpu.cfs_quota_us")).split()[:1]
    if not quota or not quota[0].isdecimal():
        return None
    found = dict(re.findall(r"^(\w+) (\d+)$", _text(folder / "cpu.stat"), re.MULTILINE))
    if not {"nr_periods", "nr_throttled"} <= found.keys():
        return None
    return Throttling(int(found["nr_periods"]), int(found["nr_throttled"]))


def _pressure(folder: Path) -> dict[str, float]:
    found = {
        resource: re.match(r"some .*total=(\d+)", _text(folder / f"{resource}.pressure"))
        for resource in RESOURCES
    }
    return {name: int(total[1]) / MICROSECONDS for name, total in found.items() if total}


def _text(file: Path) -> str:
    """Return the beginning of *file*; '' if it cannot be read, as pressure with psi=0."""
    return (beginning(file) or b"").decode(errors="replace")

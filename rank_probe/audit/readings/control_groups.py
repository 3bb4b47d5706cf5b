"""The limits of this process's control group: CPU time and memory, in version 1 or 2."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rank_probe.audit.readings.files import NodeMounts, text_of
from rank_probe.process.small_files import number_in

# Version 1 writes "no limit" as the largest number of pages.
NO_LIMIT_BYTES: Final = 2**60


def key(mounts: NodeMounts) -> str:
    """Return what is the same for processes that share all limits.

    In a container every path may be /, so the namespace is part of it.
    """
    try:
        namespace = str((mounts.procfs / "self/ns/cgroup").readlink())
    except OSError:
        namespace = ""
    return f"{namespace} {text_of(mounts.procfs / 'self/cgroup')}"


def cpu_quota(mounts: NodeMounts) -> float | None:
    """Return how many CPUs the processes of the group may keep busy; None without a limit."""
    quotas = [
        quota
        for folder in _folders(mounts, "cpu")
        for quota in (_quota_2(folder), _quota_1(folder))
        if quota is not None
    ]
    return min(quotas, default=None)


def memory(mounts: NodeMounts) -> tuple[int | None, int | None]:
    """Return the lowest memory limit, and what is left of the scarcest, both in bytes."""
    limits, left = [], []
    for folder in _folders(mounts, "memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = number_in(folder / limit_file), number_in(folder / used_file)
            if limit is not None and limit < NO_LIMIT_BYTES:
                limits.append(limit)
                left.append(max(0, limit - (used or 0) + _cache_bytes(folder)))
    return min(limits, default=None), min(left, default=None)


def _folders(mounts: NodeMounts, controller: str) -> Iterator[Path]:
    """Yield the group's folder and those above it, in both versions."""
    root = mounts.sysfs / "fs/cgroup"
    for line in text_of(mounts.procfs / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" and number == "0":
            mounted = root
        elif controller in controllers.split(","):
            mounted = root / controller
        else:
            continue
        inside = Path(path.lstrip("/"))
        if ".." not in inside.parts:
            yield from (mounted / each for each in (inside, *inside.parents))


def _quota_2(folder: Path) -> float | None:
    found = re.fullmatch(r"(\d+) (\d+)", text_of(folder / "cpu.max"))
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def _quota_1(folder: Path) -> float | None:
    quota = number_in(folder / "cpu.cfs_quota_us")  # -1 without a limit.
    period = number_in(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _cache_bytes(folder: Path) -> int:
    """Return the page cache that the kernel drops before it kills anybody."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", text_of(folder / "memory.stat"), re.M)
    return int(found[1]) if found else 0

"""Which process started which: the node's processes by their parents."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from exporter.processes.usage import stat
from rank_probe.process.small_files import names_in

# A parent is read once, then again in every so many looks: an id may be taken by another process.
LOOKS_BEFORE_READ_AGAIN: Final = 20
# A tenth of a second's work. The rest is read at the next looks.
MOST_READ: Final = 4096


class Children:
    """Lists the processes of the proc file system at *procfs*, mostly without reading them.

    Not /proc/<pid>/task/*/children: a rank has hundreds of threads, and each may have started one.
    """

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._parents: dict[int, int] = {}
        self._looks = 0

    def look(self) -> Mapping[int, Sequence[int]]:
        """Return the children of each process that has any."""
        pids = [int(name) for name in names_in(self._procfs) if name.isdecimal()]
        self._looks += 1
        turn = self._looks % LOOKS_BEFORE_READ_AGAIN
        due = [pid for pid in pids if pid not in self._parents]
        due += [pid for pid in pids if pid % LOOKS_BEFORE_READ_AGAIN == turn]
        read = {pid: stat(self._procfs, pid) for pid in islice(dict.fromkeys(due), MOST_READ)}
        parents = {pid: self._parents[pid] for pid in pids if pid in self._parents}
        parents |= {pid: each.parent_pid for pid, each in read.items() if each is not None}
        self._parents = parents
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        return children


def family(
    pid: int, children: Mapping[int, Sequence[int]], others: frozenset[int]
) -> dict[int, int]:
    """Return *pid* and its descendants, each with its parent; a parent comes before its children.

    Processes in *others*, and what those started, are left out.
    """
    found = {pid: 0}
    waiting = [pid]
    for parent in waiting:  # It grows meanwhile.
        for child in children.get(parent, ()):
            if child not in found and child not in others:
                found[child] = parent
                waiting.append(child)
    return found

"""What one process has used since it started, from /proc/<pid>.

Not psutil: see docs/decisions.md.
"""

from pathlib import Path
from typing import Final, NamedTuple

from rank_probe.process.small_files import beginning

ZOMBIE: Final = (b"Z", b"X")


class Usage(NamedTuple):
    """What a process has used since it started, itself (*own*) and by *ended* children.

    *ended* has only children that it waited for, and theirs. *read_bytes* are from storage, those
    of ended children included: the kernel adds them up. *running_nanoseconds*, the time for which
    it ran, and *run_queue_nanoseconds*, that for which it was ready but had no CPU, are the main
    thread's: reading all threads would take a file for each. So is *state*, a letter. None is
    "could not be read".
    """

    start_ticks: int
    parent_pid: int
    is_zombie: bool
    own: "Work"
    ended: "Work"
    read_bytes: int | None = None
    run_queue_nanoseconds: int | None = None
    state: bytes = b""
    running_nanoseconds: int | None = None
    name: str = ""


class Work(NamedTuple):
    """CPU time in user and kernel mode, and page faults that had to be read from storage."""

    cpu_ticks: int = 0
    major_faults: int = 0


def usage(procfs: Path, pid: int) -> Usage | None:
    """Return what process *pid* has used; None if there is none."""
    folder = f"{procfs}/{pid}"
    found = stat(procfs, pid)
    if found is None:
        return None
    running, queued = _scheduled_nanoseconds(folder)
    return found._replace(
        read_bytes=_read_bytes(folder),
        running_nanoseconds=running,
        run_queue_nanoseconds=queued,
    )


def stat(procfs: Path, pid: int) -> Usage | None:
    """Return what /proc/<pid>/stat has of a process; None if there is none."""
    # The name is in parentheses and may contain anything, even parentheses.
    before, _, after = (beginning(f"{procfs}/{pid}/stat") or b"").rpartition(b")")
    fields = after.split()
    try:
        return Usage(
            start_ticks=int(fields[19]),
            parent_pid=int(fields[1]),
            is_zombie=fields[0] in ZOMBIE,
            own=Work(int(fields[11]) + int(fields[12]), int(fields[9])),
            ended=Work(int(fields[13]) + int(fields[14]), int(fields[10])),
            state=fields[0],
            name=before.partition(b"(")[2].decode(errors="replace"),
        )
    except (IndexError, ValueError):
        return None


def _read_bytes(folder: str) -> int | None:
    # Of other users' processes only with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
    words = (beginning(f"{folder}/io") or b"").split()
    try:
        return int(words[words.index(b"read_bytes:") + 1])
    except (IndexError, ValueError):
        return None


def _scheduled_nanoseconds(folder: str) -> tuple[int | None, int | None]:
    fields = (beginning(f"{folder}/schedstat") or b"").split()
    # A kernel that does not count says that the process never ran.
    if len(fields) != 3 or not all(map(bytes.isdigit, fields)) or fields[2] == b"0":
        return None, None
    return int(fields[0]), int(fields[1])

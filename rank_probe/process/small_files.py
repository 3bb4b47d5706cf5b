"""Reads small files that somebody else may have made: below /proc, in a job's folder, a dump.

A pipe, a device or an endless file in such a place costs nothing: see content().
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

# Far beyond most files of a process, except for a `status` with hundreds of groups.
FILE_BYTES: Final = 1 << 13
# Of a node: counters of thousands of network devices, or mounts.
NODE_BYTES: Final = 1 << 24
_READ_BYTES: Final = 1 << 16
# Opening a pipe must not wait for its writer, and opening a terminal must not make it ours.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# The most that Linux can be built for.
MOST_CPUS: Final = 8192


def content(path: str | Path, most_bytes: int, *, follows_links: bool = False) -> bytes:
    """Return the first *most_bytes* of the regular file *path*; raises OSError for anything else.

    With *follows_links* the name may be a link, as in a Secret or ConfigMap that is mounted.
    """
    # Plain calls take half the time of Path.open(), and the exporter reads hundreds of files.
    try:
        descriptor = os.open(path, _FLAGS if follows_links else _FLAGS | os.O_NOFOLLOW)
    except OSError as error:
        raise OSError("it is a link") if error.errno == errno.ELOOP else error from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        found = bytearray()
        while more := os.read(descriptor, min(most_bytes - len(found), _READ_BYTES)):
            found += more
        return bytes(found)
    finally:
        os.close(descriptor)


def beginning(path: str | Path, most_bytes: int = FILE_BYTES) -> bytes | None:
    """Return the first *most_bytes* of a file; None if it is gone, not readable or not regular."""
    try:
        return content(path, most_bytes)
    except OSError:  # Also ESRCH: the process ended after its file was opened.
        return None


def text_of(path: str | Path, most_bytes: int = NODE_BYTES) -> str | None:
    """Return the text of a file, stripped; None if it cannot be read.

    Any OSError counts as unreadable: a driver may refuse a file that it lists (EINVAL, EOPNOTSUPP),
    and a device may disappear between the listing and the read.
    """
    found = beginning(path, most_bytes)
    return None if found is None else found.decode(errors="replace").strip()


def number_in(path: Path) -> int | None:
    """Return the whole number that the file consists of; None for "N/A (no PMA)" and the like."""
    text = text_of(path, FILE_BYTES)
    return int(text) if text is not None and re.fullmatch("[0-9]{1,20}", text) else None


def names_in(folder: Path) -> list[str]:
    """Return the entries of *folder*, sorted; empty if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of *text*, ascending and below MOST_CPUS; none if it is no such list."""
    cpus: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        cpus.update(range(int(first), min(int(last or first) + 1, MOST_CPUS)))
    return tuple(sorted(cpus))

"""The events file: lines are appended by a thread, so that no slow disk holds up the exporter."""

import errno
import logging
import os
import queue
import stat
import threading
from pathlib import Path
from typing import Final

from exporter.errors import StartError, reason

logger = logging.getLogger(__name__)

MODE: Final = 0o640
# Lines that wait for the disk: a node's ranks begin and end together.
MOST_WAITING: Final = 4096
# What is read back at start: about four thousand lines.
READ_BACK_BYTES: Final = 1 << 20
STOP_SECONDS: Final = 1.0
# What a disk may say that was well when the file was named.
DISK_TROUBLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


# The process's own streams: what it may write to already, and a socket has no other way in.
STREAMS: Final = {"/dev/stdout": 1, "/dev/stderr": 2}
APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY


class EventsFile:
    """Appends lines to *path* between start() and stop(), and counts what became of them.

    A file that logrotate has moved or removed is opened again by its name. A disk that is full or
    read-only costs the lines of that time, even at the start. *path* may also be a named pipe, or
    /dev/stdout or /dev/stderr. Raises StartError if it cannot be opened for another reason.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self.written = 0
        self.dropped = 0
        self._file: int | None = None
        try:
            self._file = self._opened()
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise StartError(
                    f"cannot write --events.file {path}: {reason(error)}; "
                    "name a file in a directory that this user may write to"
                ) from error
            self._complain(error)

    def tail(self) -> list[str]:
        """Return the last lines that are in the file already; a stream has none."""
        if not self._path.is_file():
            return []
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - READ_BACK_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError as error:
            logger.warning(
                "cannot read back the events file %s, so events of before may be written again: %s",
                self._path,
                error,
            )
            return []

    def start(self) -> None:
        """Start writing."""
        self._thread = threading.Thread(
            target=self._write_until_stopped, name="rankskew-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and close the file; a thread that hangs in the disk is left behind."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def write(self, line: str) -> None:
        """Append *line* soon; it is dropped if too many wait."""
        if self._waiting.qsize() >= MOST_WAITING:
            self.drop()
        else:
            self._waiting.put(line)

    def drop(self) -> None:
        """Count a line that is not to be written."""
        self.dropped += 1

    def _write_until_stopped(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._append(line)
        if self._file is not None:
            os.close(self._file)

    def _append(self, line: str) -> None:
        try:
            _write(self._open_now(), f"{line}\n".encode())
        except OSError as error:
            self.drop()
            self._complain(error)
        else:
            self.written += 1
            self._is_failing = False

    def _complain(self, error: OSError) -> None:
        if not self._is_failing:
            logger.warning("cannot write the events file %s: %s", self._path, error)
        self._is_failing = True

    def _open_now(self) -> int:
        """Return the file of that name, which may not be the one that is open."""
        before = self._file
        if before is not None and str(self._path) in STREAMS:
            return before
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if before is None or there is None or not os.path.samestat(there, os.fstat(before)):
            self._file = self._opened()
            if before is not None:
                os.close(before)
        assert self._file is not None
        return self._file

    def _opened(self) -> int:
        stream = STREAMS.get(str(self._path))
        if stream is not None:
            return os.dup(stream)
        if self._path.is_fifo():  # Opened for reading too, it need not wait for its reader.
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return os.open(self._path, APPEND, MODE)


def _write(file: int, line: bytes) -> None:
    """Append *line*, to a file all of it or nothing; raises OSError."""
    written = os.write(file, line)
    if written == len(line):
        return
    if not stat.S_ISREG(os.fstat(file).st_mode):
        _write(file, line[written:])
        return
    # A nearly full disk takes a part.
    os.ftruncate(file, os.fstat(file).st_size - written)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

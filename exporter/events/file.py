"""The events file: lines are appended by a thread, so that no slow disk holds up the exporter."""

import logging
import os
import queue
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


class EventsFile:
    """Appends lines to *path* between start() and stop(), and counts what became of them.

    A file that logrotate has moved or removed is opened again by its name. Raises StartError if it
    cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self.written = 0
        self.dropped = 0
        try:
            self._file = self._opened()
        except OSError as error:
            raise StartError(
                f"cannot write --events.file {path}: {reason(error)}; "
                "name a file in a directory that this user may write to"
            ) from error

    def tail(self) -> list[str]:
        """Return the last lines that are in the file already."""
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BACK_BYTES))
            return file.read().decode(errors="replace").splitlines()

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
        os.close(self._file)

    def _append(self, line: str) -> None:
        try:
            self._open_again_if_moved()
            os.write(self._file, f"{line}\n".encode())
        except OSError as error:
            self.drop()
            if not self._is_failing:
                logger.warning("cannot write the events file %s: %s", self._path, error)
            self._is_failing = True
        else:
            self.written += 1
            self._is_failing = False

    def _open_again_if_moved(self) -> None:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._file)):
            opened = self._opened()
            os.close(self._file)
            self._file = opened

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)

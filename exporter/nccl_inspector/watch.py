"""Follows the files that NCCL Inspector writes, one per process, in the background."""

import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter.nccl_inspector.records import Record, parse

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 60.0
# Limits for one process that writes without end, and for a directory that nobody clears.
MOST_BYTES_A_LOOK: Final = 1 << 20
MOST_RECORDS: Final = 8192
MOST_FILES: Final = 1024
LONGEST_LINE: Final = 1 << 16


# Device and number: a file keeps them when it is renamed.
FileKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Speeds:
    """The bus bandwidth of a process, by collective; *uid* owns the file that says so."""

    uid: int
    bytes_per_second: Mapping[str, float]


@dataclass(slots=True)
class _GrowingFile:
    """A file that grows: what was read, and the records of the window with when they were read."""

    uid: int
    offset: int
    rest: bytes = b""
    records: deque[tuple[float, Record]] = field(default_factory=lambda: deque(maxlen=MOST_RECORDS))

    def take(self, data: bytes, since: int) -> None:
        """Go on with *data*, which begins at *since*; what is before it was skipped."""
        self.rest = data if since > self.offset else self.rest + data
        self.offset = since + len(data)

    def lines(self) -> list[bytes]:
        """Return the whole lines that were taken, and keep the one that is not whole yet."""
        *lines, rest = self.rest.split(b"\n")
        self.rest = rest if len(rest) <= LONGEST_LINE else b""
        return lines


class InspectorWatch:
    """Reads *directory* every few seconds in a thread between start() and stop().

    Only processes of *host* count: the directory may be shared by all nodes of a job.
    """

    def __init__(
        self, directory: Path, host: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._host = _short(host)
        self._clock = clock
        self._files: dict[FileKey, _GrowingFile] = {}
        self._has_looked = False
        # Replaced as a whole, so that a reader in another thread never sees a partial result.
        self._latest: Mapping[int, Speeds] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_complained = False

    def start(self) -> None:
        """Start reading."""
        self._thread = threading.Thread(
            target=self._look_until_stopped, name="rankskew-nccl-inspector", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; a thread that hangs in the file system is left behind."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=0.2)

    def latest(self) -> Mapping[int, Speeds]:
        """Return the speeds of the last minute, by process id."""
        return self._latest

    def look(self) -> None:
        """Read what was written since the last look."""
        now = self._clock()
        there = set()
        for path in self._paths():
            if (key := self._read(path, now)) is not None:
                there.add(key)
        self._has_looked = True
        self._files = {key: file for key, file in self._files.items() if key in there}
        by_process: dict[int, Speeds] = {}
        for file in self._files.values():
            while file.records and file.records[0][0] < now - WINDOW_SECONDS:
                file.records.popleft()
            for pid, speeds in _speeds(record for _, record in file.records).items():
                by_process[pid] = Speeds(file.uid, speeds)
        self._latest = by_process

    def _paths(self) -> list[Path]:
        try:
            with os.scandir(self._directory) as found:
                return [Path(each.path) for each, _ in zip(found, range(MOST_FILES), strict=False)]
        except OSError as error:
            if not self._is_complained:
                self._is_complained = True
                logger.warning("cannot read NCCL Inspector's files in %s", error)
            return []

    def _read(self, path: Path, now: float) -> FileKey | None:
        """Read on in the file *path*, and return what tells it from others."""
        try:
            # Any user may write there: a pipe would block, a link lead elsewhere.
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode):
                return None
            file = self._file(about)
            since = max(file.offset, about.st_size - MOST_BYTES_A_LOOK)
            data = os.pread(number, MOST_BYTES_A_LOOK, since)
        except OSError:
            return None
        finally:
            os.close(number)
        file.take(data, since)
        for line in file.lines():
            record = parse(line)
            if record is not None and _short(record.host) == self._host:
                file.records.append((now, record))
        return about.st_dev, about.st_ino

    def _file(self, about: os.stat_result) -> _GrowingFile:
        key = about.st_dev, about.st_ino
        file = self._files.get(key)
        if file is None or about.st_size < file.offset:
            # What was there before the exporter began is of no minute that it knows.
            begin = 0 if self._has_looked else about.st_size
            file = self._files[key] = _GrowingFile(about.st_uid, begin)
        return file

    def _look_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(INTERVAL_SECONDS)


def _speeds(records: Iterable[Record]) -> dict[int, dict[str, float]]:
    """Return the mean bandwidth by process and collective, weighted by time."""
    sums: dict[int, dict[str, tuple[float, float]]] = {}
    for record in records:
        of_process = sums.setdefault(record.pid, {})
        seconds, moved = of_process.get(record.collective, (0.0, 0.0))
        more = record.bytes_per_second * record.seconds
        of_process[record.collective] = (seconds + record.seconds, moved + more)
    return {
        pid: {name: moved / seconds for name, (seconds, moved) in each.items()}
        for pid, each in sums.items()
    }


def _short(host: str) -> str:
    return host.partition(".")[0].lower()

"""What ends a command, in one line that says what to do; and what must not end the exporter."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# The exit status of a command that was used wrongly, or cannot do or tell what was asked; 1 is that
# of one that has found something.
FAILED: Final = 2

logger = logging.getLogger(__name__)


class UsageError(Exception):
    """A wrong flag, value or config file."""


class StartError(Exception):
    """The machine refuses what was asked: a port in use, a directory not writable."""


def reason(error: OSError) -> str:
    """Return the system's own words for *error*, without the additions of any library."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class Failures:
    """Unexpected errors in recurring work; each error costs one round of it.

    Any thread may use it, but each kind of *work* belongs to a single thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: set[tuple[str, str]] = set()
        # The error of each work whose last round failed.
        self.last: dict[str, Exception] = {}

    @property
    def count(self) -> int:
        """The errors so far."""
        return sum(tuple(self._counts.values()))

    @contextmanager
    def caught(self, work: str) -> Iterator[None]:
        """Catch whatever the block, a round of *work*, raises; count it, and log it once."""
        try:
            yield
        except Exception as error:
            self.last[work] = error
            self._counts[work] = self._counts.get(work, 0) + 1
            what = work, f"{type(error).__name__}: {error}"
            if what not in self._logged and len(self._logged) < 100:
                self._logged.add(what)
                logger.exception("%s failed and will be retried: %s", *what)
        else:
            self.last.pop(work, None)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Let the block read *path*, a file that the user has named; raises UsageError if it cannot."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error


def text_of(path: Path) -> str:
    """Return the text in *path*, a file that the user has named; raises UsageError."""
    with reading(path):
        return path.read_text(encoding="utf-8")


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return a stamp that changes with the content of *path*; None while stat() fails."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

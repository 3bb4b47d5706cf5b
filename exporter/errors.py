"""What ends a command: each message is one line that says what is wrong and what to do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(Exception):
    """A wrong flag, value or config file; the command exits with *status*."""

    status = 2


class StartError(Exception):
    """The machine refuses what was asked: a port in use, a directory not writable."""

    status = 1


def reason(error: OSError) -> str:
    """Return the system's own words for *error*, without the additions of any library."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


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

"""Tells whether a file has changed since it was read."""

from pathlib import Path


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes with the content of *path*; None while it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

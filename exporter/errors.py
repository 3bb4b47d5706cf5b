"""What ends a command: each message is one line that says what is wrong and what to do."""

import os


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

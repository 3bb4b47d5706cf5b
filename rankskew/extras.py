"""A package that is missing is one line that says which extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from exporter.errors import UsageError

OURS: Final = ("rank_probe", "exporter", "rankskew", "fleet_simulator")


class NotInstalled(UsageError):
    """A package of an extra cannot be imported here."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Let the block import packages of *extra*; raises NotInstalled if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in OURS:
            raise
        raise NotInstalled(
            f"{missing} is not installed: run pip install 'rankskew[{extra}]'"
        ) from error

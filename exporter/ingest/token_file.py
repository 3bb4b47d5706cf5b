"""The token that clients of the ingest's TCP listener must send; never logged or sent back."""

import logging
import secrets
import stat
from pathlib import Path
from typing import Final

from exporter.errors import UsageError, reason, stamp
from rank_probe.process.small_files import content

logger = logging.getLogger(__name__)

# A larger file is not a token file.
LARGEST_BYTES: Final = 4096
# A group may read it: the group of the training users.
OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


class TokenFile:
    """The token in the file *path*, read at the start and whenever the file changes.

    A file that is missing or unusable raises UsageError at startup; later, the last token that was
    read stays valid, so that an incomplete rotation does not lock clients out.
    """

    def __init__(self, path: Path, flag: str) -> None:
        self._path = path
        self._stamp = stamp(path)
        self._token = read(path, flag)
        for warning in exposures(path, flag):
            logger.warning("%s", warning)

    def is_shown_in(self, authorization: str) -> bool:
        """Whether *authorization*, the header's value, carries the token."""
        self._follow_the_file()
        scheme, _, token = authorization.partition(" ")
        # In constant time, so that the duration does not reveal how much of a guess was right.
        is_right = secrets.compare_digest(token.strip().encode(errors="replace"), self._token)
        return scheme.lower() == "bearer" and is_right

    def _follow_the_file(self) -> None:
        now = stamp(self._path)
        if now == self._stamp:
            return
        self._stamp = now  # Also for an unusable file, so that it is logged only once.
        try:
            self._token = _token(self._path)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else f"it {error}"
            logger.warning("%s: %s; the previous token stays valid", self._path, why)


def read(path: Path, flag: str) -> bytes:
    """Return the token in *path*, which *flag* names; raises UsageError."""
    try:
        return _token(path)
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path}: {reason(error)}") from error
    except ValueError as error:
        raise UsageError(f"{flag}: {path} {error}") from error


def exposures(path: Path, flag: str) -> list[str]:
    """Return a sentence if others can read or change *path*."""
    if not path.stat().st_mode & OTHERS:
        return []
    return [f"{flag}: other users of this node can read or change {path}: chmod 0640 it"]


def _token(path: Path) -> bytes:
    """Return the token in *path*; raises ValueError, which never quotes the content."""
    token = content(path, LARGEST_BYTES + 1, follows_links=True).strip()
    if not token or len(token) > LARGEST_BYTES or not all(33 <= byte <= 126 for byte in token):
        raise ValueError("must hold one token: printable ASCII without spaces, on one line")
    return token

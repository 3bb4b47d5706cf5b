"""Connections to the ingest listener: the user of each, and how many are open."""

import logging
import resource
import socket
import struct
from collections import Counter
from typing import Final

logger = logging.getLogger(__name__)

# struct ucred of unix(7): pid, uid, gid.
CREDENTIALS: Final = struct.Struct("iII")


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user who opened *connection*; None over loopback, where the kernel cannot tell.

    Users that are unknown in this user namespace count as one.
    """
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    uid: int = CREDENTIALS.unpack(credentials)[1]
    return uid


class Door:
    """Allows *connections_max* connections, and half of them for one user.

    All connections over loopback count as one user.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = _affordable(connections_max)
        self._inside: Counter[int | None] = Counter()

    def enter(self, uid: int | None) -> bool:
        """Count one more connection of *uid*; return False, and do not count it, at a limit."""
        share = max(1, self._connections_max // 2)
        if self._inside.total() >= self._connections_max or self._inside[uid] >= share:
            return False
        self._inside[uid] += 1
        return True

    def leave(self, uid: int | None) -> None:
        """Count one connection of *uid* fewer."""
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]


def _affordable(connections: int) -> int:
    """Return *connections*, or half the files that this process may open if those are fewer."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or connections <= files // 2:
        return connections
    logger.warning(
        "only %d of %d ingest connections can be open at once: "
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
        files // 2,
        connections,
    )
    return files // 2

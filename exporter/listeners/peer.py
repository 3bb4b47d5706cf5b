"""Who is at the other end of a Unix socket, according to the kernel, not the client."""

import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from exporter import cgroups

# struct ucred of unix(7): pid, uid, gid.
CREDENTIALS: Final = struct.Struct("iII")
CGROUP_BYTES: Final = 65536
# The container of a process that has ended, or that /proc hides. Not '': a process in a container
# could hand its connection to another and exit, and would then be taken for one outside.
UNKNOWN: Final = "?"


class Peer(NamedTuple):
    """A user, in the pod, container or batch job *container*, '' for none, or UNKNOWN.

    In a container without a user namespace, root has the node's root's user id.
    """

    uid: int
    container: str = ""

    def may_act_for(self, owner: "Peer | None") -> bool:
        """Return whether this peer may control what belongs to *owner*.

        A user outside any container may control what the same user runs in one.
        """
        return owner is not None and (self == owner or self == Peer(owner.uid))


def peer_of(connection: socket.socket, procfs: Path = Path("/proc")) -> Peer | None:
    """Return who opened *connection*; None over TCP, where the kernel does not know.

    All users that are unknown to this user namespace count as one. A process that is unknown to
    this PID namespace counts as outside any container. *procfs* must be that of this process's own
    namespace.
    """
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(credentials)
    return Peer(uid, _container(procfs / str(pid) / "cgroup") if pid else "")


def _container(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return UNKNOWN
    try:
        text = os.read(descriptor, CGROUP_BYTES).decode(errors="replace")
    except OSError:
        return UNKNOWN
    finally:
        os.close(descriptor)
    return cgroups.parse(text).container

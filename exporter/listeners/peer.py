"""Who is at the other end of a Unix socket, according to the kernel, not the client."""

import re
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter import cgroups
from rank_probe.process.small_files import beginning

# struct ucred of unix(7): pid, uid, gid.
CREDENTIALS: Final = struct.Struct("iII")
FILE_BYTES: Final = 65536
# More generations than a shell in a container has.
ANCESTORS: Final = 32
# A container that no cgroup names (LXC, systemd-nspawn, bubblewrap), by its first process.
NAMESPACE_OF: Final = "namespace of process "
# The container of a process that has ended, or that /proc hides. Not '': a process in a container
# could hand its connection to another and exit, and would then be taken for one outside.
UNKNOWN: Final = "?"
# The ids of a pod or a container, which root makes; those of batch jobs are shorter.
OF_ROOT: Final = re.compile(r"[0-9a-f_-]{32}")


@dataclass(frozen=True, slots=True)
class Peer:
    """A user, in the pod, container, batch job or PID namespace *container*.

    It is '' for a process in none of them, or UNKNOWN. *pid* is the process that connected, 0 if it
    is unknown; two processes of one user in one container are the same peer.

    In a container without a user namespace, root has the node's root's user id.
    """

    uid: int
    container: str = ""
    pid: int = field(default=0, compare=False)

    @property
    def sharer(self) -> "Peer":
        """Return who has a share of the node: the user, in whatever batch jobs and namespaces.

        Pods and containers are apart, as all of them may have one user; so is what root runs.
        """
        is_apart = self.uid == 0 or OF_ROOT.match(self.container)
        return self if is_apart else Peer(self.uid)

    def is_running(self) -> bool:
        """Return whether the process may still run: its id may have been given to another."""
        return self.pid > 0 and Path(f"/proc/{self.pid}").exists()

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
    return Peer(uid, _container(procfs, pid) if pid else "", pid)


def _container(procfs: Path, pid: int) -> str:
    text = _text(procfs, pid, "cgroup")
    if text is None:
        return UNKNOWN
    return cgroups.parse(text).container or _namespace(procfs, pid)


def _namespace(procfs: Path, pid: int) -> str:
    """Return '' in the PID namespace of *procfs*, else which namespace directly inside it.

    /proc/PID/ns would name it, but only to root; anyone may read which ids a process has. A process
    that entered the namespace from outside (nsenter, lxc-attach) is UNKNOWN.
    """
    is_outside = ""
    for _ in range(ANCESTORS):
        status = _text(procfs, pid, "status")
        if status is None:
            return UNKNOWN
        found = re.search(r"^NSpid:\s+(.+)$", status, re.MULTILINE)
        ids = found[1].split() if found else []
        if len(ids) < 2:
            return is_outside
        if len(ids) == 2 and ids[1] == "1":
            return f"{NAMESPACE_OF}{pid}"
        is_outside = UNKNOWN
        parent = re.search(r"^PPid:\s+(\d+)$", status, re.MULTILINE)
        pid = int(parent[1]) if parent else 0
    return UNKNOWN


def _text(procfs: Path, pid: int, name: str) -> str | None:
    found = beginning(procfs / str(pid) / name, FILE_BYTES)
    return None if found is None else found.decode(errors="replace")

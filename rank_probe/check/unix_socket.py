"""The exporter's Unix socket, as a file: is it there, and may this user write to it?"""

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from rank_probe.check.problem import CannotReport


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The socket at *path*: its permission bits, user and group, and whether we may write to it."""

    path: str
    mode: str
    user: str
    group: str
    writable: bool


def look_at(path: str) -> SocketFile:
    """Return what lies at *path*; raises Problem if it is no socket."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise CannotReport(_absent(path), may_pass=True) from None
    except OSError as error:
        raise CannotReport(
            f"cannot look at the socket {path}: {error.strerror}; {_MOUNT}"
        ) from error
    if not stat.S_ISSOCK(status.st_mode):
        raise CannotReport(f"{path} is not a socket: set RANKSKEW_EXPORTER to the exporter's")
    return SocketFile(
        path,
        f"{stat.S_IMODE(status.st_mode):04o}",
        _user(status.st_uid),
        _group(status.st_gid),
        os.access(path, os.W_OK),
    )


def require_writable(socket: SocketFile) -> None:
    """Raise Problem if this user may not write to *socket*."""
    if not socket.writable:
        raise CannotReport(
            f"user {_user(os.getuid())} may not write to {socket.path} (mode {socket.mode}, "
            f"owner {socket.user}, group {socket.group}): start the exporter with "
            "--ingest.socket-mode=0666, or add the user to that group"
        )


_MOUNT = "in a container, mount the directory of the exporter's socket"


def _absent(path: str) -> str:
    directory = Path(path).parent
    where = f"there is no socket {path}"
    if not directory.is_dir():
        where = f"there is no directory {directory}"
    return f"{where}: start one with: rankskew exporter; {_MOUNT}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # Common in containers.
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

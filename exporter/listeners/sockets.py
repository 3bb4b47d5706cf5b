"""Opens the listening sockets; if one cannot be opened, says why in one line."""

import errno
import ipaddress
import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from exporter.errors import StartError, UsageError, reason

# How many connections may queue. asyncio accepts up to this many before it can close any of them,
# so a flood costs that many file descriptors beyond the limits in exporter/wiring.py.
BACKLOG: Final = 128


def host_and_port(address: str, flag: str) -> tuple[str, int]:
    """Split *address*, `host:port` or `:port`; raises UsageError naming *flag*."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{flag}: {address!r} is not host:port, such as 127.0.0.1:9917 or :9917")
    return host.removeprefix("[").removesuffix("]"), int(port)


def open_tcp(address: str, flag: str) -> socket.socket:
    """Listen on *address*; without a host, on every address of the node."""
    host, port = host_and_port(address, flag)
    try:
        if host:
            family, _, _, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server(place[:2], family=family, backlog=BACKLOG)
        return _open_everywhere(port)
    except OSError as error:
        raise StartError(
            f"cannot listen on {address}: {reason(error)}; "
            f"stop what holds it or choose another {flag}"
        ) from error


def _open_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    return socket.create_server(("", port), backlog=BACKLOG)


def open_loopback(address: str, flag: str) -> socket.socket:
    """Listen on *address*, which must be loopback: without a token, anyone may push."""
    host, _ = host_and_port(address, flag)
    if not is_loopback(host):
        raise UsageError(
            f"{flag}: {address!r} is not a loopback address, and without a token anyone could "
            "push there; use 127.0.0.1:PORT or [::1]:PORT, or set --ingest.token-file"
        )
    return open_tcp(address, flag)


def is_loopback(host: str) -> bool:
    """Whether *host* is reached from this node only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class UnixListener:
    """A listening Unix socket and its file, which close() removes."""

    def __init__(self, path: Path, mode: int, flag: str) -> None:
        self.path = path
        self._mode = mode
        self._flag = flag
        self._open()

    def renew(self) -> socket.socket | None:
        """Listen anew if the file, and perhaps its directory, is gone; None if it is there.

        The old socket stays open. Raises StartError if the file cannot be created, or if it now
        belongs to another exporter.
        """
        if self._is_there():
            return None
        self._open()
        return self.socket

    def _open(self) -> None:
        _make_directory(self.path.parent, self._flag)
        try:
            _refuse_to_replace(self.path, self._flag)
            self.socket, self._file = _listen(self.path, self._mode)
        except OSError as error:
            raise StartError(
                f"cannot open the socket {self.path}: {reason(error)}; "
                f"make its directory writable or choose another {self._flag}"
            ) from error

    def close(self) -> None:
        """Close the socket and remove its file, unless another exporter has replaced it."""
        self.socket.close()
        if self._is_there():
            self.path.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        try:
            return _identity(self.path.lstat()) == self._file
        except OSError:
            return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns  # File systems reuse freed inodes.


def _make_directory(directory: Path, flag: str) -> None:
    try:
        if not directory.is_dir():
            directory.mkdir(parents=True)
            directory.chmod(0o755)  # Whatever the umask: trainers of any user must get in.
    except OSError as error:
        raise StartError(
            f"cannot create {directory} for a socket: {reason(error)}; "
            f"create it for this user, choose another {flag}, or turn it off with {flag}="
        ) from error


def _refuse_to_replace(path: Path, flag: str) -> None:
    """Raise StartError if anything but a dead exporter's socket file is there."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            what = f"{path} is there and is not a socket"
            raise StartError(f"{what}: remove it or choose another {flag}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog must not block the start: it also shows that an exporter listens.
        probe.setblocking(False)
        try:
            with suppress(BlockingIOError):
                probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
    raise StartError(f"another exporter listens on {path}: stop it or choose another {flag}")


def _listen(path: Path, mode: int) -> tuple[socket.socket, tuple[int, int]]:
    """Listen under another name, and give that file the name *path* once it is ready.

    No lock: every trainer can open the directory, and could hold a lock forever. If exporters start
    at the same moment, the last one gets the name; renew() reports that to the others.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = path.with_name(f".{secrets.token_hex(2)}")  # Short: so is what a socket may be called.
    try:
        listener.bind(str(new))
        try:
            file = _set_mode(new, mode)
            listener.listen(BACKLOG)
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
    except OSError:
        listener.close()
        raise
    return listener, file


def _set_mode(path: Path, mode: int) -> tuple[int, int]:
    """Give the socket *path* the mode, whatever the umask, which all threads share."""
    # Not by its name: whoever may write to the directory could swap the file.
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)
    return _identity(status)

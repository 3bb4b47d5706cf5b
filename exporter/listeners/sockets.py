"""Opens the listening sockets; if one cannot be opened, says why in one line."""

import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    require_loopback(address, flag)
    return open_tcp(address, flag)


def require_loopback(address: str, flag: str) -> None:
    """Raise UsageError if *address* is not a loopback address."""
    host, _ = host_and_port(address, flag)
    if host != "localhost" and not _is_loopback(host):
        raise UsageError(
            f"{flag}: {address!r} is not a loopback address, and without a token anyone could "
            "push there; use 127.0.0.1:PORT or [::1]:PORT, or set --ingest.token-file"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
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
        """Listen anew if the file is gone, with its directory perhaps; None if it is there.

        The socket before stays open. Raises StartError if the file cannot be made.
        """
        if os.path.lexists(self.path):
            return None
        self._open()
        return self.socket

    def _open(self) -> None:
        _make_directory(self.path.parent, self._flag)
        try:
            with _locked(self.path.parent):
                _remove_stale(self.path, self._flag)
                self.socket = _bind(self.path, self._mode)
        except OSError as error:
            raise StartError(
                f"cannot open the socket {self.path}: {reason(error)}; "
                f"make its directory writable or choose another {self._flag}"
            ) from error
        self._file = _identity(self.path)

    def close(self) -> None:
        """Close the socket and remove its file, unless another exporter has replaced it."""
        self.socket.close()
        with suppress(FileNotFoundError):
            if _identity(self.path) == self._file:
                self.path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
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


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock *directory* while the socket is replaced, so that two exporters cannot both win."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_stale(path: Path, flag: str) -> None:
    """Remove a dead exporter's socket file; raises StartError if it is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path} is there and is not a socket: remove it or choose another {flag}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog must not block the start: it also shows that an exporter listens.
        probe.setblocking(False)
        try:
            with suppress(BlockingIOError):
                probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise StartError(f"another exporter listens on {path}: stop it or choose another {flag}")


def _bind(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not chmod() afterwards: whoever may write to the directory could swap the file.
        umask = os.umask(~mode & 0o777)
        try:
            listener.bind(str(path))
        finally:
            os.umask(umask)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener

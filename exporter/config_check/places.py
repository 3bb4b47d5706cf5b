"""Checks of addresses, sockets, directories and files that the exporter opens."""

import os
import socket
import stat
from pathlib import Path
from typing import Final

from exporter.config_check.findings import Findings
from exporter.errors import StartError, UsageError, reason
from exporter.events.file import STREAMS
from exporter.listeners.sockets import host_and_port, require_loopback

# sun_path of unix(7), without the zero at its end.
SOCKET_PATH_BYTES: Final = 107


def check_address(address: str, flag: str) -> None:
    """Raise UsageError or StartError if this node cannot listen on the host of *address*.

    The port may be in use: by the exporter that runs.
    """
    host, _ = host_and_port(address, flag)
    if not host:
        return
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((place[0], 0))
    except OSError as error:
        raise StartError(
            f"{flag}: {host} is not an address of this node: {reason(error)}"
        ) from error


def check_ingest_address(address: str, flag: str, has_token: bool) -> None:
    """Raise UsageError or StartError if ranks cannot, or must not, push to *address*."""
    if not has_token:
        require_loopback(address, flag)
    check_address(address, flag)


def check_socket(path: Path, flag: str) -> None:
    """Raise UsageError or StartError if no socket can be made at *path*."""
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise UsageError(f"{flag}: {path} is too long for a socket: at most 107 bytes")
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartError(f"{flag}: {path} is there and is not a socket: remove it")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StartError(f"{flag}: cannot look at {path}: {reason(error)}") from error
    directory = path.absolute().parent
    while not directory.exists():
        directory = directory.parent
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise StartError(
            f"{flag}: this user cannot make {path.name} below {directory}: "
            "create its directory for this user, or choose another path"
        )


def check_appendable(path: Path, flag: str) -> None:
    """Raise StartError if this user cannot append to the file *path*."""
    if str(path) in STREAMS:  # Open already.
        return
    is_there = path.exists()
    if path.is_dir() or not os.access(path if is_there else path.absolute().parent, os.W_OK):
        raise StartError(
            f"{flag}: this user cannot write {path}: name a file in an existing directory that "
            "it may write to"
        )


def check_state(directory: Path, flag: str, findings: Findings) -> None:
    """Warn if the list of GPUs cannot be kept in *directory*."""
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        findings.warnings.append(
            f"{flag}: {directory} is not a directory that this user may write to, so a GPU that is "
            "lost while the exporter restarts is not noticed: create it, or pass --gpus.expected"
        )


def check_mount(directory: Path, file: str, flag: str) -> None:
    """Raise StartError if *directory* lacks the *file* that each such mount has."""
    if not (directory / file).exists():
        raise StartError(f"{flag}: {directory} has no {file}, so nothing is mounted there")

"""A Unix socket that was removed is served anew, whatever fails on the way."""

import asyncio
import errno
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exporter import server
from exporter.errors import Failures
from exporter.listeners import renewal
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.renewal import Renewal
from exporter.listeners.sockets import UnixListener
from tests.exporter.listeners.serving import FLAG


async def answers(scope: object, receive: object, send: Any) -> None:
    """Answer with no content."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


class Busy(Listener):
    """A listener in a process that may have no file descriptor left."""

    is_busy = False

    async def _server(self, listening: socket.socket) -> asyncio.Server:
        if self.is_busy:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await super()._server(listening)


async def answer(path: Path) -> bytes:
    """Return the first line that the server at *path* answers."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return line


def test_socket_that_cannot_be_served_at_once_is_served_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where all files are taken for a moment, nobody waits for ever in the queue of the socket."""

    async def run(unix: UnixListener) -> bytes:
        listener = Busy([unix.socket], answers, Bounds(9, b"", b""))
        await listener.startup([unix.socket])
        renewing = Renewal(unix, listener)
        unix.path.unlink()
        for listener.is_busy in (True, True, False):
            await renewing.look()
        line = await answer(unix.path)
        (only,) = listener.servers
        only.close()
        return line

    with closing(UnixListener(tmp_path / "e.sock", 0o666, FLAG)) as unix:
        assert asyncio.run(run(unix)).startswith(b"HTTP/1.1 204 ")
    assert caplog.messages == [
        "new clients cannot connect, and it is tried again: [Errno 24] Too many open files",
        f"{tmp_path}/e.sock was removed; the exporter listens there anew",
    ]


class Odd(Renewal):
    """One that fails as nobody expected."""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self) -> None:
        """Fail."""
        self.looks += 1
        raise KeyError("odd")


def test_event_loop_goes_on_after_errors_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks and timers are awaited by nobody: each would end, or fill the log."""
    monkeypatch.setattr(renewal, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.001)
    odd, taken, failures = Odd(), [], Failures()

    def look(now: float, timestamp: float) -> None:
        taken.append(now)
        raise ValueError("odd")

    class Serves(Listener):
        async def serve_until_told(self) -> None:
            while odd.looks < 3 or len(taken) < 3:
                await asyncio.sleep(0.001)

    listener = Serves([], answers, Bounds(9, b"", b""))
    asyncio.run(server.run_all([listener], {"the page": look}, failures, [odd]))

    assert failures.count >= 6
    assert sorted(caplog.messages) == [
        "socket renewal failed, and goes on: KeyError: 'odd'",
        "the page failed, and goes on: ValueError: odd",
    ]

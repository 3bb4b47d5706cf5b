"""A listener on a Unix socket and a loopback port, in the test's own event loop."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, ParamSpec

from starlette.types import ASGIApp

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.sockets import UnixListener, open_loopback
from exporter.operator.levels import Orders
from exporter.ranks.store import RankStore
from tests.exporter.running import PATIENCE_SECONDS

FLAG: Final = "--some.socket"
MAX_BODY_BYTES: Final = 65_536
GET: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMIT_SECONDS: Final = 30.0

P = ParamSpec("P")


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test that pytest can call."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Later:
    """The event loop's clock, which a test puts forward: no limit of time is waited for."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real, self._ahead = loop.time, 0.0
        loop.time = lambda: real() + self._ahead  # type: ignore[method-assign] # the point of it

    def skip(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._ahead += seconds


def request(body: bytes) -> bytes:
    """Return a push of *body*."""
    return (
        b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


class Client:
    """One connection, which ends with its listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.send = writer.write
        self.close = writer.close

    async def answer(self) -> str:
        """Return the next answer, head and body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return (head + await self.reader.readexactly(int(length))).decode()

    async def rest(self) -> bytes:
        """Return all that comes until the other side closes."""
        return await asyncio.wait_for(self.reader.read(), PATIENCE_SECONDS)


class Serving:
    """A listener that serves; *results* counts pushes."""

    def __init__(
        self,
        directory: Path,
        app: ASGIApp | None,
        connections: int,
        idle_gives_way: bool,
    ) -> None:
        counts = IngestCounts()
        self.results = counts.results
        self.path = directory / "e.sock"
        self.unix = UnixListener(self.path, 0o666, FLAG)
        self.loopback = open_loopback("127.0.0.1:0", FLAG)
        self._port = self.loopback.getsockname()[1]
        store = RankStore()
        app = app or IngestApp(store, counts, Orders(store), MAX_BODY_BYTES)
        bounds = Bounds(
            connections,
            b"full",
            b"text/plain",
            idle_gives_way=idle_gives_way,
            seconds=LIMIT_SECONDS,
            turned_away=counts.turn_away,
        )
        self.listener = Listener([self.unix.socket, self.loopback], app, bounds)
        self.clients: list[Client] = []

    async def connect(
        self, sent: bytes = b"", address: str = "127.0.0.1", limit: int = 65_536
    ) -> Client:
        """Connect over TCP from *address*; the client stops reading at about twice *limit*."""
        made = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(address, 0), limit=limit
        )
        return self._client(*made, sent)

    async def connect_unix(self, sent: bytes = b"") -> Client:
        return self._client(*await asyncio.open_unix_connection(self.path), sent)

    def _client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes
    ) -> Client:
        self.clients.append(Client(reader, writer))
        writer.write(sent)
        return self.clients[-1]

    async def until_open(self, connections: int) -> None:
        """Wait until the listener has so many connections open."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.listener.server_state.connections) != connections:
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    directory: Path,
    app: ASGIApp | None = None,
    connections: int = 100,
    idle_gives_way: bool = False,
) -> AsyncIterator[Serving]:
    """Serve *app*, the ingest if there is none."""
    running = Serving(directory, app, connections, idle_gives_way)
    task = asyncio.create_task(running.listener.serve_until_told())
    try:
        while not running.listener.started:
            await asyncio.sleep(0.01)
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.listener.end()
        await task
        running.loopback.close()
        running.unix.close()


async def exchange(directory: Path, sent: bytes, app: ASGIApp | None = None) -> bytes:
    """Send *sent* over the Unix socket; return all that comes back until it is closed."""
    async with serving(directory, app) as running:
        return await (await running.connect_unix(sent)).rest()

"""An ingest listener in the test's own event loop, and what a client does with it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.sockets import UnixListener, open_loopback
from exporter.operator.levels import Orders
from exporter.ranks.store import RankStore
from tests.exporter.running import PATIENCE_SECONDS

FLAG = "--ingest.socket"
MAX_BODY_BYTES = 65_536
# Short enough to wait for: for tests of the limit alone, a busy machine may take longer to answer.
LIMIT_SECONDS = 0.5

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Ingest:
    """An ingest listener on a Unix socket and a loopback port, in the test's own event loop."""

    def __init__(
        self, directory: Path, connections: int, app: ASGIApp | None, limit_seconds: float
    ) -> None:
        counts = IngestCounts()
        self.results = counts.results
        self._unix = UnixListener(directory / "e.sock", 0o666, FLAG)
        self._loopback = open_loopback("127.0.0.1:0", FLAG)
        self._path, self._port = directory / "e.sock", self._loopback.getsockname()[1]
        store = RankStore()
        app = app or IngestApp(store, counts, Orders(store), MAX_BODY_BYTES)
        bounds = Bounds(
            connections,
            b'{"error": "full"}',
            b"application/json",
            idle_gives_way=False,
            seconds=limit_seconds,
            turned_away=counts.turn_away,
        )
        self._listener = Listener([self._unix.socket, self._loopback], app, bounds)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Ingest"]:
        task = asyncio.create_task(self._listener.serve_until_told())
        try:
            while not self._listener.started:
                await asyncio.sleep(0.01)
            yield self
        finally:
            self._listener.end()
            await task
            self._loopback.close()
            self._unix.close()

    async def until_open(self, connections: int) -> None:
        """Wait until the listener has so many connections open."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self._listener.server_state.connections) != connections:
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.01)

    async def connect(self) -> Peer:
        return await asyncio.open_unix_connection(self._path)

    async def connect_over_loopback(self) -> Peer:
        return await asyncio.open_connection("127.0.0.1", self._port)


@asynccontextmanager
async def ingest(
    directory: Path,
    connections: int = 100,
    app: ASGIApp | None = None,
    limit_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[Ingest]:
    async with Ingest(directory, connections, app, limit_seconds).serving() as running:
        yield running


def request(body: bytes) -> bytes:
    return (
        b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


async def answer(peer: Peer) -> str:
    """Return the head of the next answer; its body is read too."""
    head = await asyncio.wait_for(peer[0].readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return (head + await peer[0].readexactly(int(length))).decode()


async def until_closed(peer: Peer, trickle: bytes = b"") -> None:
    """Wait until the other side closes *peer*, which goes on sending *trickle*."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    closed = asyncio.create_task(peer[0].read())
    while not closed.done() and time.monotonic() < deadline:
        peer[1].write(trickle)
        await asyncio.wait([closed], timeout=0.05)
    assert closed.done(), "never closed"
    peer[1].close()


class Echo:
    """Answers with the path it was asked for, after the whole body, and notes what it got."""

    def __init__(self) -> None:
        self.asked: list[Scope] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.asked.append(scope)
        self.bodies.append(await request.body())
        peer = scope["state"]["peer"]
        content = {"uid": None if peer is None else peer.uid, "path": scope["path"]}
        await JSONResponse(content)(scope, receive, send)


async def exchange(directory: Path, sent: bytes, app: ASGIApp | None = None) -> bytes:
    """Send *sent* over the Unix socket; return all that comes back until it is closed."""
    async with ingest(directory, app=app) as running:
        reader, writer = await running.connect()
        writer.write(sent)
        back = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
        return back

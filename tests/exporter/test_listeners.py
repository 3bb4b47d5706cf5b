"""A listener limits its connections and requests, and keeps no silent one forever."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.listeners import connection
from exporter.listeners.connection import HEAD_BYTES, MOST_PIPELINED, REQUEST_SECONDS, Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.peer import Peer
from exporter.listeners.sockets import open_loopback
from rank_probe.report.push import INTERVAL_SECONDS
from tests.exporter.running import PATIENCE_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNK = b"400\r\n" + b"x" * 1_024 + b"\r\n"
CHUNKED = b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
# Several reads of asyncio, which takes 256 KiB at once.
MUCH = 16 * HEAD_BYTES
FINE = PlainTextResponse("fine")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of the exporter."""
    return "asyncio"


def post(body: bytes) -> bytes:
    head = b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


class Later:
    """The event loop's clock, which a test puts forward: no limit of time is waited for."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real, self._ahead = loop.time, 0.0
        loop.time = lambda: real() + self._ahead  # type: ignore[method-assign] # the point of it

    def skip(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._ahead += seconds


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after the whole body."""
    with suppress(ClientDisconnect):
        await Request(scope, receive).body()
        await FINE(scope, receive, send)


class Held:
    """An application that answers once *let* is set, and counts the requests that wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.let = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.waiting += 1
        await self.let.wait()
        await FINE(scope, receive, send)

    async def until_waiting(self, count: int) -> None:
        while self.waiting < count:
            await asyncio.sleep(0)


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
    """A listener on a loopback port, in the test's own event loop."""

    def __init__(self, app: ASGIApp, connections: int, idle: bool) -> None:
        self.loopback = open_loopback("127.0.0.1:0", "--some.address")
        self.turned_away: list[bool] = []
        bounds = Bounds(
            connections, b"full", b"text/plain", idle, lambda: self.turned_away.append(True)
        )
        self.listener = Listener([self.loopback], app, bounds)
        self.clients: list[Client] = []

    async def connect(
        self, sent: bytes = b"", address: str = "127.0.0.1", limit: int = 65_536
    ) -> Client:
        """Connect from *address*; the client stops reading at about twice *limit*."""
        port = self.loopback.getsockname()[1]
        new = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=limit)
        self.clients.append(Client(*new))
        self.clients[-1].send(sent)
        return self.clients[-1]

    @property
    def open(self) -> int:
        """Return how many connections the listener has."""
        return len(self.listener.server_state.connections)

    async def until_open(self, connections: int) -> None:
        """Wait until the listener has so many connections."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.open != connections:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    app: ASGIApp = FINE, connections: int = 100, idle_gives_way: bool = False
) -> AsyncIterator[Serving]:
    """Serve *app*."""
    running = Serving(app, connections, idle_gives_way)
    task = asyncio.create_task(running.listener.serve_until_told())
    try:
        while not running.listener.started:
            await asyncio.sleep(0)
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.listener.end()
        await task
        running.loopback.close()


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a client does, nobody needs a password for it: it must not cost a traceback."""
    yield
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert errors == []


async def test_connection_beyond_the_limit_is_told_so() -> None:
    """A connection beyond the limit gets a 503; one address gets at most half of the places."""
    held = Held()
    async with serving(held, connections=4, idle_gives_way=True) as running:
        served = [await running.connect(GET) for _ in range(2)]
        await held.until_waiting(2)
        refused = [await running.connect(GET)]
        served += [await running.connect(GET, "127.0.0.2") for _ in range(2)]
        await held.until_waiting(4)
        refused += [await running.connect(GET, "127.0.0.3")]
        refusals = [await client.rest() for client in refused]
        held.let.set()

        assert [(await client.answer())[:15] for client in served] == ["HTTP/1.1 200 OK"] * 4
    assert refusals == [Bounds(4, b"full", b"text/plain").refusal()] * 2
    assert refusals[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert refusals[0].endswith(b"Content-Length: 4\r\nConnection: close\r\n\r\nfull")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_connection_that_has_been_idle_longest_gives_way(address: str) -> None:
    """Idle connections keep nobody out, not even a scraper at the same address.

    A client that uses its connection keeps it, although another has connected since.
    """
    async with serving(connections=2, idle_gives_way=True) as running:
        idle = [await running.connect(b"", each) for each in ("127.0.0.1", "127.0.0.2")]
        await running.until_open(2)
        scraper = await running.connect(GET, address)
        gone, stays = idle if address == "127.0.0.1" else reversed(idle)
        assert (await scraper.answer()).startswith("HTTP/1.1 200 OK\r\n")
        assert await gone.rest() == b""
        assert not stays.reader.at_eof()

        stays.send(GET)
        await stays.answer()
        await (await running.connect(GET, "127.0.0.3")).answer()
        assert await scraper.rest() == b""
        assert not stays.reader.at_eof()


async def test_one_user_cannot_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user, in any batch jobs, gets at most half of the places, where none gives way.

    A connection that ends makes room, also one that is gone as soon as it is there.
    """
    comers = [Peer(1000), Peer(1000, "7"), Peer(1000, "8"), *map(Peer, (1001, 1002, 1003, 1003))]
    arriving = iter([*comers, *[Peer(1000)] * 10])
    monkeypatch.setattr(connection, "peer_of", lambda _: next(arriving))
    statuses: list[str] = []
    async with serving(connections=4) as running:
        for number in range(7):
            if number == 6:
                running.clients[0].close()
                await running.until_open(3)
            client = await running.connect(GET)
            # Of the refused ones, what was not read ends the connection with a reset.
            first = await asyncio.wait_for(client.reader.readuntil(b"\r\n"), PATIENCE_SECONDS)
            statuses.append(first[9:12].decode())
        assert len(running.turned_away) == 2
        for _ in range(10):
            gone = await running.connect(b"x" * 1_000)
            gone.writer.transport.abort()

    assert statuses == ["200", "200", "503", "200", "200", "503", "200"]


@pytest.mark.parametrize(
    ("sent", "trickle"),
    [
        (b"", b""),
        (b"POST /v1/snapsh", b""),
        (b"POST /v1/snapsh", b"X"),
        (post(b"x" * 50)[:-49], b"X"),
        (post(b"{}") + b"POST /v1/snapsh", b"X"),
    ],
)
async def test_connection_that_ends_no_request_is_dropped(sent: bytes, trickle: bytes) -> None:
    """Saying nothing, or never coming to an end, holds a connection for a limited time only."""
    async with serving(echo) as running:
        later, client = Later(), await running.connect(sent)
        await running.until_open(1)
        if sent.startswith(post(b"{}")):
            await client.answer()
        later.skip(REQUEST_SECONDS * 0.8)
        client.send(trickle)
        await asyncio.sleep(0.01)
        assert running.open == 1
        later.skip(REQUEST_SECONDS * 0.3)
        await client.rest()


async def test_client_that_does_not_read_its_answer_is_dropped() -> None:
    """A large page goes with its connection."""
    async with serving(PlainTextResponse(b"x" * 20_000_000)) as running:
        await running.connect(GET, limit=1)
        await running.until_open(1)
        later = Later()
        while running.open:
            later.skip(REQUEST_SECONDS / 10)
            await asyncio.sleep(0.01)


HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (CHUNKED + b"zz\r\n", 400),
        # Who asks for a tunnel or a WebSocket gets one answer, and the end.
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nrubbish", 400),
        (b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nrubbish", 200),
        # The answer to HEAD has no body.
        (HEAD, 200),
    ],
)
async def test_what_is_no_request_has_one_answer(sent: bytes, status: int) -> None:
    """One sentence, and the end."""
    async with serving(echo) as running:
        back = await (await running.connect(sent)).rest()

    assert back.startswith(b"HTTP/1.1 %d " % status)
    assert back.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in back.lower()
    assert back.endswith(b"\r\n\r\n") is (sent == HEAD)


async def test_garbage_after_the_answer_has_begun_ends_the_connection() -> None:
    """A second answer cannot follow within the first."""
    body = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await body.wait()
        await send({"type": "http.response.body", "body": b"ended"})

    async with serving(slow) as running:
        client = await running.connect(CHUNKED)
        begin = await asyncio.wait_for(client.reader.readuntil(b"begun"), PATIENCE_SECONDS)
        client.send(b"zz\r\n")
        assert b"400" not in begin + await client.rest()
        body.set()


async def test_limits_are_for_each_request_anew() -> None:
    """A connection may carry any number of requests, in pieces or in many chunks.

    Each answer restarts its time limit. A rank therefore needs only one connection, and finds it
    open even after missing a few pushes.
    """
    assert REQUEST_SECONDS > 10 * INTERVAL_SECONDS
    sent = post(b"x" * 60_000)
    async with serving(echo) as running:
        later, client = Later(), await running.connect()
        for _ in range(5):
            client.send(sent[:50_000])
            await asyncio.sleep(0)
            client.send(sent[50_000:])
            assert (await client.answer()).startswith("HTTP/1.1 200")
            later.skip(REQUEST_SECONDS * 0.8)
        client.send(CHUNKED)
        for _ in range(200):
            client.send(CHUNK)
            await asyncio.sleep(0)
        client.send(b"0\r\n\r\n" + post(b"{}"))
        assert [(await client.answer())[9:12] for _ in range(2)] == ["200", "200"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * MUCH,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MUCH // 6),
        CHUNKED + b"1;" + b"x" * MUCH,
        CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * (MUCH // 6),
        GET * (MOST_PIPELINED + 2),
    ],
)
async def test_head_without_end_is_cut_off(sent: bytes) -> None:
    """Neither one request nor many of them can fill the memory, with headers or with trailers."""
    async with serving(echo) as running:
        client = await running.connect(sent)
        try:
            answers = await client.rest()
        except ConnectionResetError:  # The rest of it was not read.
            answers = b""
        client.close()
        assert not running.open
    assert answers.count(b"HTTP/1.1 ") <= 1

"""The web listener holds so many connections and no more, and none that says nothing for ever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.server import Listener
from exporter.sockets import open_loopback
from exporter.web.http import NO_ROOM, web_protocol
from tests.exporter.running import PATIENCE_SECONDS

# Short enough to wait for: for tests of the limit alone, a busy machine may take longer to answer.
LIMIT_SECONDS = 0.3
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def web(
    app: ASGIApp, connections: int = 100, limit_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[tuple[Listener, int]]:
    """Serve *app* in the test's own event loop; yield the listener and its port."""
    opened = open_loopback("127.0.0.1:0", "--web.listen-address")
    port = opened.getsockname()[1]
    listener = Listener([opened], web_protocol(connections, limit_seconds), app)
    task = asyncio.create_task(listener.serve_until_told())
    try:
        while not listener.started:
            await asyncio.sleep(0.01)
        yield listener, port
    finally:
        listener.end()
        await task


async def head(peer: Peer) -> bytes:
    return await asyncio.wait_for(peer[0].readuntil(b"\r\n"), PATIENCE_SECONDS)


async def connect(port: int, address: str = "127.0.0.1", sent: bytes = b"") -> Peer:
    peer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    peer[1].write(sent)
    return peer


class Held:
    """An application that answers when it is let, and counts who waits."""

    def __init__(self) -> None:
        self.waiting = 0
        self.let = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.waiting += 1
        await self.let.wait()
        await PlainTextResponse("fine")(scope, receive, send)

    async def until_waiting(self, count: int) -> None:
        while self.waiting < count:
            await asyncio.sleep(0)


def test_connection_beyond_the_bound_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever comes too many to a listener at work gets a 503; half of it is another address's."""

    async def crowd() -> tuple[list[bytes], list[bytes]]:
        held = Held()
        async with web(held, connections=4) as (_, port):
            first = [await connect(port, sent=GET) for _ in range(2)]
            await held.until_waiting(2)
            refused = [await connect(port, sent=GET)]
            second = [await connect(port, "127.0.0.2", GET) for _ in range(2)]
            await held.until_waiting(4)
            refused += [await connect(port, "127.0.0.3", GET)]
            refusals = [await asyncio.wait_for(r.read(), PATIENCE_SECONDS) for r, _ in refused]
            held.let.set()
            served = [await head(peer) for peer in first + second]
            for _, writer in first + second + refused:
                writer.close()
            return refusals, served

    refusals, served = asyncio.run(crowd())
    assert refusals == [NO_ROOM] * 2
    assert served == [b"HTTP/1.1 200 OK\r\n"] * 4
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_connection_that_has_been_idle_longest_gives_way(address: str) -> None:
    """A crowd that says nothing keeps nobody out, not even a scraper at its own address."""

    async def crowd() -> tuple[bytes, bytes, bool]:
        async with web(PlainTextResponse("fine"), connections=2) as (listener, port):
            idle = [await connect(port, one) for one in ("127.0.0.1", "127.0.0.2")]
            while len(listener.server_state.connections) < 2:
                await asyncio.sleep(0)
            scraper = await connect(port, address, GET)
            answer = await head(scraper)
            gone, stays = idle if address == "127.0.0.1" else reversed(idle)
            last = await asyncio.wait_for(gone[0].read(), PATIENCE_SECONDS)
            is_open = not stays[0].at_eof()
            for _, writer in (*idle, scraper):
                writer.close()
            return answer, last, is_open

    assert asyncio.run(crowd()) == (b"HTTP/1.1 200 OK\r\n", b"", True)


def test_client_that_does_not_read_gives_way() -> None:
    """Clients that ask and ask and take no answer keep no scraper out, from several addresses."""
    asked = 0

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        is_scraper = scope["client"][0] == "127.0.0.3"
        page = PlainTextResponse(b"fine" if is_scraper else b"x" * 20_000_000)
        await page(scope, receive, send)

    async def crowd() -> bytes:
        async with web(large, connections=2) as (_, port):
            deaf = []
            for address in ("127.0.0.1", "127.0.0.2"):
                deaf.append(
                    await asyncio.open_connection(
                        "127.0.0.1", port, local_addr=(address, 0), limit=1
                    )
                )
                deaf[-1][1].write(GET * 2)
            while asked < 4:
                await asyncio.sleep(0)
            scraper = await connect(port, "127.0.0.3", GET)
            answer = await head(scraper)
            for _, writer in (*deaf, scraper):
                writer.close()
            return answer

    assert asyncio.run(crowd()) == b"HTTP/1.1 200 OK\r\n"


def test_connection_that_was_just_served_is_not_idle_longest() -> None:
    """A scraper that keeps its connection keeps it, though another has connected since."""

    async def crowd() -> tuple[bytes, bool]:
        async with web(PlainTextResponse("fine"), connections=2) as (listener, port):
            kept = await connect(port, "127.0.0.1")
            silent = await connect(port, "127.0.0.2")
            while len(listener.server_state.connections) < 2:
                await asyncio.sleep(0)
            kept[1].write(GET)
            await asyncio.wait_for(kept[0].readuntil(b"fine"), PATIENCE_SECONDS)
            scraper = await connect(port, "127.0.0.3", GET)
            await head(scraper)
            last = await asyncio.wait_for(silent[0].read(), PATIENCE_SECONDS)
            is_open = not kept[0].at_eof()
            for _, writer in (kept, silent, scraper):
                writer.close()
            return last, is_open

    assert asyncio.run(crowd()) == (b"", True)


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", GET + b"GET / HT"])
def test_connection_that_ends_no_request_is_dropped(sent: bytes) -> None:
    """Saying nothing, or half a request, holds a place for a limited time only."""

    async def dawdle() -> float:
        async with web(PlainTextResponse("fine"), limit_seconds=LIMIT_SECONDS) as (_, port):
            started = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            return time.monotonic() - started

    assert LIMIT_SECONDS * 0.9 < asyncio.run(dawdle()) < LIMIT_SECONDS * 20


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 is no HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naXX\r\n",
    ],
)
def test_what_is_no_http_leaves_nothing_in_the_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody needs a password to send it, so it must not cost a traceback."""

    async def garble() -> bytes:
        async with web(PlainTextResponse("fine")) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            return answer

    assert asyncio.run(garble()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_garbage_after_the_answer_has_begun_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second answer cannot follow within the first."""
    body = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await body.wait()
        await send({"type": "http.response.body", "body": b"ended"})

    async def garble() -> bytes:
        async with web(slow) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            begin = await asyncio.wait_for(reader.readuntil(b"begun"), PATIENCE_SECONDS)
            writer.write(b"zz\r\n")
            rest = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            body.set()
            writer.close()
            return begin + rest

    assert b"400" not in asyncio.run(garble())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_client_that_does_not_read_is_dropped() -> None:
    """A large page that nobody takes is thrown away with its connection."""

    async def ignore_the_answer() -> None:
        page = PlainTextResponse(b"x" * 50_000_000)
        async with web(page, limit_seconds=LIMIT_SECONDS) as (listener, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(GET)
            while not listener.server_state.connections:
                await asyncio.sleep(0)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while listener.server_state.connections and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert not listener.server_state.connections
            writer.close()

    asyncio.run(ignore_the_answer())

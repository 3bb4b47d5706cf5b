"""A listener limits its connections, and keeps no silent one forever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from exporter.listeners import connection
from exporter.listeners.connection import HEAD_BYTES, MOST_PIPELINED, Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.peer import Peer as Owner
from exporter.listeners.sockets import UnixListener, open_loopback
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
    bounds = Bounds(connections, b"full", b"text/plain", seconds=limit_seconds)
    listener = Listener([opened], app, bounds)
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
    assert refusals == [Bounds(4, b"full", b"text/plain").refusal()] * 2
    assert refusals[0].endswith(b"Content-Length: 4\r\nConnection: close\r\n\r\nfull")
    assert served == [b"HTTP/1.1 200 OK\r\n"] * 4
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_connection_that_has_been_idle_longest_gives_way(address: str) -> None:
    """A silent crowd keeps nobody out, not even a scraper at its own address."""

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
    """A large page that is not read is dropped with its connection."""

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


def test_one_user_cannot_keep_the_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user gets at most half of the places; a connection that ends makes room."""
    comers = iter([*[Owner(1000)] * 3, Owner(1001), Owner(1002, "pod"), Owner(1003), Owner(1003)])
    monkeypatch.setattr(connection, "peer_of", lambda _: next(comers))
    turned_away = []

    async def crowd() -> list[bytes]:
        unix = UnixListener(tmp_path / "e.sock", 0o666, "--ingest.socket")
        bounds = Bounds(
            4,
            b"full",
            b"text/plain",
            idle_gives_way=False,
            turned_away=lambda: turned_away.append(1),
        )
        listener = Listener([unix.socket], PlainTextResponse("fine"), bounds)
        task = asyncio.create_task(listener.serve_until_told())
        answers: list[bytes] = []
        peers: list[Peer] = []
        for number in range(7):
            if number == 6:
                peers[0][1].close()
                while len(listener.server_state.connections) > 3:
                    await asyncio.sleep(0)
            peers.append(await asyncio.open_unix_connection(str(tmp_path / "e.sock")))
            peers[-1][1].write(GET)
            answers.append((await head(peers[-1]))[9:12])
        for _, writer in peers:
            writer.close()
        listener.end()
        await task
        unix.close()
        return answers

    assert asyncio.run(crowd()) == [b"200", b"200", b"503", b"200", b"200", b"503", b"200"]
    assert len(turned_away) == 2


# Several reads of asyncio, which takes 256 KiB at once.
MUCH = 16 * HEAD_BYTES


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * MUCH,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MUCH // 6),
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * MUCH,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
        + b"X: y\r\n" * (MUCH // 6),
        GET * (MOST_PIPELINED + 2),
        b"\r\n" * (MUCH // 2),
    ],
)
def test_head_without_end_is_cut_off(sent: bytes) -> None:
    """Neither one request nor many of them can fill the memory, with headers or with trailers."""

    async def after_the_body(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            continue
        await PlainTextResponse("fine")(scope, receive, send)

    async def flood() -> int:
        async with web(after_the_body) as (listener, port):
            reader, writer = await connect(port, sent=sent)
            try:
                answers = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS / 2)
            except ConnectionResetError:  # The rest of it was not read.
                answers = b""
            writer.close()
            assert not listener.server_state.connections
            return answers.count(b"HTTP/1.1 ")

    assert asyncio.run(flood()) <= 1

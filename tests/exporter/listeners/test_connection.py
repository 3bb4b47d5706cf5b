"""A listener limits its connections, handshakes and requests, and keeps no silent one forever."""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from exporter.listeners import connection
from exporter.listeners.connection import HEAD_BYTES, MOST_PIPELINED, REQUEST_SECONDS, Bounds
from exporter.listeners.handshakes import Handshakes, TlsListener
from exporter.listeners.peer import Peer
from rank_probe.report.push import INTERVAL_SECONDS
from tests.exporter.listeners.serving import (
    GET,
    LIMIT_SECONDS,
    MAX_BODY_BYTES,
    Later,
    exchange,
    in_event_loop,
    request,
    serving,
)
from tests.exporter.running import PATIENCE_SECONDS
from tests.exporter.snapshots import snapshot

FINE = PlainTextResponse("fine")


class Held:
    """An application that answers when it is let, and counts who waits."""

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


@in_event_loop
async def test_connection_beyond_the_limit_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever comes too many to a listener at work gets a 503; half of it is another address's."""
    held = Held()
    async with serving(tmp_path, held, connections=4, idle_gives_way=True) as running:
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
    assert refusals[0].endswith(b"Content-Length: 4\r\nConnection: close\r\n\r\nfull")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
@in_event_loop
async def test_connection_that_has_been_idle_longest_gives_way(
    tmp_path: Path, address: str
) -> None:
    """A silent crowd keeps nobody out, not even a scraper at its own address.

    A scraper that keeps its connection keeps it, though another has connected since.
    """
    async with serving(tmp_path, FINE, connections=2, idle_gives_way=True) as running:
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


@in_event_loop
async def test_client_that_does_not_read_gives_way(tmp_path: Path) -> None:
    """Clients that ask and ask and take no answer keep no scraper out, from several addresses."""
    asked = 0

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        is_scraper = scope["client"][0] == "127.0.0.3"
        page = PlainTextResponse(b"fine" if is_scraper else b"x" * 20_000_000)
        await page(scope, receive, send)

    async with serving(tmp_path, large, connections=2, idle_gives_way=True) as running:
        for address in ("127.0.0.1", "127.0.0.2"):
            await running.connect(GET * 2, address, limit=1)
        while asked < 4:
            await asyncio.sleep(0)
        scraper = await running.connect(GET, "127.0.0.3")

        assert (await scraper.answer()).startswith("HTTP/1.1 200 OK\r\n")


@in_event_loop
async def test_connection_that_ends_makes_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the ingest's, none gives way: one too many is refused at once and counted.

    That leaves no trace of an error, also when it is gone already.
    """
    async with serving(tmp_path, connections=4) as running:
        inside = [await running.connect_unix() for _ in range(2)]
        refused = await running.connect_unix()
        assert (await refused.answer()).startswith("HTTP/1.1 503 Service Unavailable\r\n")
        assert await refused.rest() == b""
        assert running.results["turned_away"] == 1
        for _ in range(10):
            gone = await running.connect_unix(b"x" * 1_000)
            gone.writer.transport.abort()

        inside[0].close()
        await running.until_open(1)
        late = await running.connect_unix(request(snapshot().to_json()))
        assert (await late.answer()).startswith("HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@in_event_loop
async def test_one_user_cannot_keep_the_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user gets at most half of the places; a connection that ends makes room."""
    comers = iter([*[Peer(1000)] * 3, Peer(1001), Peer(1002, "pod"), Peer(1003), Peer(1003)])
    monkeypatch.setattr(connection, "peer_of", lambda _: next(comers))
    statuses: list[str] = []
    async with serving(tmp_path, FINE, connections=4) as running:
        for number in range(7):
            if number == 6:
                running.clients[0].close()
                await running.until_open(3)
            client = await running.connect_unix(GET)
            # Of the refused ones, what was not read ends the connection with a reset.
            first = await asyncio.wait_for(client.reader.readuntil(b"\r\n"), PATIENCE_SECONDS)
            statuses.append(first[9:12].decode())

    assert statuses == ["200", "200", "503", "200", "200", "503", "200"]
    assert running.results["turned_away"] == 2


@pytest.mark.parametrize(
    ("sent", "malformed"),
    [
        (b"", 0),
        (b"POST /v1/snapsh", 0),
        (b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{", 1),
        (request(b"{}") + b"POST /v1/snapsh", 0),
    ],
)
@pytest.mark.parametrize("trickle", [b"", b"X"])
@in_event_loop
async def test_connection_that_ends_no_request_is_dropped(
    tmp_path: Path, sent: bytes, malformed: int, trickle: bytes
) -> None:
    """Saying nothing, or never coming to an end, holds a connection for a limited time only."""
    async with serving(tmp_path) as running:
        later, client = Later(), await running.connect_unix(sent)
        await running.until_open(1)
        if sent.startswith(request(b"{}")):
            await client.answer()
        later.skip(LIMIT_SECONDS * 0.8)
        client.send(trickle if sent else b"")
        await asyncio.sleep(0.01)
        assert len(running.listener.server_state.connections) == 1
        later.skip(LIMIT_SECONDS * 0.3)
        await client.rest()

        assert running.results["malformed"] == malformed


@in_event_loop
async def test_client_that_does_not_read_its_answers_is_dropped(tmp_path: Path) -> None:
    """Many answers, or one large page: they go with their connection."""
    async with serving(tmp_path) as running:
        # The reader stops by itself at twice its limit, far below what is sent here.
        client = await running.connect_unix(request(b"{}") * 100_000)
        later, read = Later(), asyncio.create_task(client.writer.drain())
        while not read.done():
            later.skip(LIMIT_SECONDS / 10)
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionError):
            await read

    page = PlainTextResponse(b"x" * 50_000_000)
    async with serving(tmp_path, page) as running:
        await running.connect(GET, limit=1)
        await running.until_open(1)
        while running.listener.server_state.connections:
            later.skip(LIMIT_SECONDS / 10)
            await asyncio.sleep(0.01)


@in_event_loop
async def test_connection_in_use_is_kept(tmp_path: Path) -> None:
    """Each answer gives a connection its whole time again, so that a rank needs only one.

    A rank that misses a few pushes still finds it open.
    """
    assert REQUEST_SECONDS > 10 * INTERVAL_SECONDS
    async with serving(tmp_path) as running:
        later, client = Later(), await running.connect_unix()
        for sequence in range(5):
            client.send(request(snapshot(sequence=sequence).to_json()))
            assert (await client.answer()).startswith("HTTP/1.1 200")
            later.skip(LIMIT_SECONDS * 0.8)


Connected = Callable[..., tuple[socket.socket, socket.socket]]


def is_shut(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def handshakes() -> Handshakes:
    return Handshakes(3)


@pytest.fixture
def connected(handshakes: Handshakes) -> Iterator[Connected]:
    """Connects from an address to a listener with *handshakes*; returns both ends."""
    with ExitStack() as stack:
        opened = TlsListener(socket.create_server(("127.0.0.1", 0)), handshakes)
        listener = stack.enter_context(opened)

        def connected(address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
            client = socket.create_connection(listener.getsockname(), 5, (address, 0))
            return stack.enter_context(client), stack.enter_context(listener.accept()[0])

        yield connected


def test_oldest_of_the_largest_crowd_is_shut_down(connected: Connected) -> None:
    """Two of one address wait, one of another: for a fourth the older of the two goes."""
    addresses = ("127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.2")
    clients = [connected(address)[0] for address in addresses]

    assert [is_shut(client) for client in clients] == [False, True, False, False]


def test_who_is_done_or_gone_makes_room(handshakes: Handshakes, connected: Connected) -> None:
    """One finishes its handshake and one is closed: more come in without harm to others."""
    done, ours = connected()
    _, closed = connected()
    handshakes.end(ours.fileno())
    closed.close()
    waiting = [connected()[0] for _ in range(3)]

    assert not any(is_shut(client) for client in (done, *waiting))


CHUNK = b"400\r\n" + b"x" * 1_024 + b"\r\n"
CHUNKED = b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
# Several reads of asyncio, which takes 256 KiB at once.
MUCH = 16 * HEAD_BYTES


class Echo:
    """Answers with the path it was asked for, after the whole body, and notes what it got."""

    def __init__(self) -> None:
        self.asked: list[Scope] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope)
        self.bodies.append(await Request(scope, receive).body())
        peer = scope["state"]["peer"]
        content = {"uid": None if peer is None else peer.uid, "path": scope["path"]}
        await JSONResponse(content)(scope, receive, send)


@in_event_loop
async def test_request_is_read_however_it_is_cut(tmp_path: Path) -> None:
    """A request that comes byte by byte is the same as one that comes at once.

    Over the Unix socket it comes with the user who connected, over loopback with none.
    """
    echo = Echo()
    sent = (
        b"POST /v1/snapshots?x=1 HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer t\r\n"
        b"Content-Length: 3\r\nConnection: close\r\n\r\nabc"
    )
    async with serving(tmp_path, echo) as running:
        client = await running.connect_unix()
        for byte in sent:
            client.send(bytes([byte]))
            await asyncio.sleep(0)

        back = await client.rest()
        assert back.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b'{"uid":%d,' % os.geteuid() in back
        assert '{"uid":null,' in await (await running.connect(request(b""))).answer()
    asked, _ = echo.asked
    assert (asked["method"], asked["path"], echo.bodies) == ("POST", "/v1/snapshots", [b"abc", b""])
    assert (b"authorization", b"Bearer t") in asked["headers"]


def test_requests_sent_together_are_answered_in_order(tmp_path: Path) -> None:
    """A client need not wait for an answer before it sends the next request."""
    gets = [b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(MOST_PIPELINED)]
    gets.append(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    back = asyncio.run(exchange(tmp_path, b"".join(gets), Echo()))

    paths = re.findall(rb'"path":"/(\w+)"', back)
    assert paths == [*(b"%d" % number for number in range(MOST_PIPELINED)), b"last"]
    assert back.count(b"connection: close") == 1


BAD = b"400 Bad Request"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", BAD),
        (b"\x16\x03\x01 is no HTTP\r\n\r\n", BAD),
        (b"GET / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n", BAD),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", BAD),
        (CHUNKED + b"zz\r\n", BAD),
        (CHUNKED + b"1\r\naXX\r\n", BAD),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_BODY_BYTES + HEAD_BYTES), BAD),
        # Who asks for a tunnel or a WebSocket gets one answer, and the end.
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nrubbish", BAD),
        (
            b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nrubbish",
            b"404 Not Found",
        ),
        # HEAD is refused like any other method here, without a body.
        (
            b"HEAD /v1/snapshots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            b"405 Method Not Allowed",
        ),
    ],
)
def test_what_is_no_request_is_one_sentence_and_nothing_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, status: bytes
) -> None:
    """Nobody needs a password to send it, so it must not cost a traceback."""
    back = asyncio.run(exchange(tmp_path, sent))

    assert back.startswith(b"HTTP/1.1 %b\r\n" % status)
    assert back.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in back.lower()
    assert back.endswith(b"\r\n\r\n") is sent.startswith(b"HEAD")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@in_event_loop
async def test_garbage_after_the_answer_has_begun_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second answer cannot follow within the first."""
    body = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await body.wait()
        await send({"type": "http.response.body", "body": b"ended"})

    async with serving(tmp_path, slow) as running:
        client = await running.connect(CHUNKED)
        begin = await asyncio.wait_for(client.reader.readuntil(b"begun"), PATIENCE_SECONDS)
        client.send(b"zz\r\n")
        assert b"400" not in begin + await client.rest()
        body.set()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@in_event_loop
async def test_client_that_asks_first_may_send_its_body(tmp_path: Path) -> None:
    """curl waits for a 100 before it sends a large body, and gets none for one too large."""
    body = snapshot().to_json()
    head = request(b"").replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
    async with serving(tmp_path) as running:
        small = await running.connect_unix(head.replace(b": 0", b": %d" % len(body)))
        large = await running.connect_unix(head.replace(b": 0", b": %d" % (MAX_BODY_BYTES + 1)))
        said = await asyncio.wait_for(small.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        small.send(body)

        assert said == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await small.answer()).startswith("HTTP/1.1 200 ")
        assert (await large.answer()).startswith("HTTP/1.1 413 ")


@in_event_loop
async def test_limit_of_a_request_is_for_each_anew(tmp_path: Path) -> None:
    """A connection may carry more than one request may have, in requests that come in pieces."""
    sent = request(b"x" * 60_000)
    async with serving(tmp_path, Echo()) as running:
        client = await running.connect_unix()
        for _ in range(20):
            client.send(sent[:50_000])
            await asyncio.sleep(0)
            client.send(sent[50_000:])
            assert (await client.answer()).startswith("HTTP/1.1 200")


@in_event_loop
async def test_body_is_held_up_to_its_limit_only(tmp_path: Path) -> None:
    """A body without an end is answered once it is too large; the rest is thrown away."""
    async with serving(tmp_path) as running:
        client = await running.connect_unix(CHUNKED)
        refused = asyncio.create_task(client.answer())
        while not refused.done():
            client.send(CHUNK)
            await asyncio.sleep(0)
        for _ in range(600):
            client.send(CHUNK)
            await asyncio.sleep(0)
        client.send(b"0\r\n\r\n" + request(snapshot().to_json()))

        assert (await refused).startswith("HTTP/1.1 413 ")
        assert (await client.answer()).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * MUCH,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MUCH // 6),
        CHUNKED + b"1;" + b"x" * MUCH,
        CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * (MUCH // 6),
        GET * (MOST_PIPELINED + 2),
        b"\r\n" * (MUCH // 2),
    ],
)
@in_event_loop
async def test_head_without_end_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    """Neither one request nor many of them can fill the memory, with headers or with trailers."""

    async def after_the_body(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            continue
        await PlainTextResponse("fine")(scope, receive, send)

    async with serving(tmp_path, after_the_body) as running:
        client = await running.connect(sent)
        try:
            answers = await client.rest()
        except ConnectionResetError:  # The rest of it was not read.
            answers = b""
        client.close()
        assert not running.listener.server_state.connections
    assert answers.count(b"HTTP/1.1 ") <= 1

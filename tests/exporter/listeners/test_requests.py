"""Requests are read however they come, answered in order, and limited in their size."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from exporter.listeners.connection import HEAD_BYTES, MOST_PIPELINED
from tests.exporter.listeners.serving import (
    GET,
    MAX_BODY_BYTES,
    exchange,
    in_event_loop,
    request,
    serving,
)
from tests.exporter.running import PATIENCE_SECONDS
from tests.exporter.snapshots import snapshot

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
async def test_handler_learns_the_peer_of_each_connection(tmp_path: Path) -> None:
    """Over the Unix socket a request comes with the user who connected, over loopback with none."""
    async with serving(tmp_path, Echo()) as running:
        over_loopback = await running.connect(request(b""))
        over_unix = await running.connect_unix(request(b""))

        assert f'{{"uid":{os.geteuid()},' in await over_unix.answer()
        assert '{"uid":null,' in await over_loopback.answer()


@in_event_loop
async def test_request_is_read_however_it_is_cut(tmp_path: Path) -> None:
    """A request that comes byte by byte is the same as one that comes at once."""
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

        assert (await client.rest()).startswith(b"HTTP/1.1 200 OK\r\n")
    (asked,) = echo.asked
    assert (asked["method"], asked["path"], echo.bodies) == ("POST", "/v1/snapshots", [b"abc"])
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

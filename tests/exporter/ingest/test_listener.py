"""A connection of the ingest listener: answered in order, bounded in bytes and time, known."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from exporter.listeners.connection import HEAD_BYTES, MOST_PIPELINED, REQUEST_SECONDS
from rank_probe.report.push import INTERVAL_SECONDS
from tests.exporter.ingest_listener import (
    LIMIT_SECONDS,
    MAX_BODY_BYTES,
    Echo,
    answer,
    exchange,
    ingest,
    request,
    until_closed,
)
from tests.exporter.running import PATIENCE_SECONDS
from tests.exporter.snapshots import snapshot
from tests.exporter.tried_again import tried_again

CHUNK = b"400\r\n" + b"x" * 1_024 + b"\r\n"


def test_handler_learns_the_peer_of_each_connection(tmp_path: Path) -> None:
    """Over the Unix socket a request comes with the user who connected, over loopback with none."""

    async def ask() -> tuple[str, str]:
        async with ingest(tmp_path, app=Echo()) as running:
            over_unix, over_loopback = (
                await running.connect(),
                await running.connect_over_loopback(),
            )
            for peer in (over_loopback, over_unix):
                peer[1].write(request(b""))
            answers = await answer(over_unix), await answer(over_loopback)
            for peer in (over_loopback, over_unix):
                peer[1].close()
            return answers

    over_unix, over_loopback = asyncio.run(ask())
    assert f'{{"uid":{os.geteuid()},' in over_unix
    assert '{"uid":null,' in over_loopback


def test_request_is_read_however_it_is_cut(tmp_path: Path) -> None:
    """A request that comes byte by byte is the same as one that comes at once."""
    echo = Echo()
    sent = (
        b"POST /v1/snapshots?x=1 HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer t\r\n"
        b"Content-Length: 3\r\nConnection: close\r\n\r\nabc"
    )

    async def dribble() -> bytes:
        async with ingest(tmp_path, app=echo) as running:
            reader, writer = await running.connect()
            for byte in sent:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            back = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            return back

    assert asyncio.run(dribble()).startswith(b"HTTP/1.1 200 OK\r\n")
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


@pytest.mark.parametrize(
    "sent",
    [
        b"rubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_BODY_BYTES + HEAD_BYTES),
    ],
)
def test_what_is_no_request_is_told_so(tmp_path: Path, sent: bytes) -> None:
    """Rubbish, two lengths that differ or a head without end: one sentence, and the end."""
    back = asyncio.run(exchange(tmp_path, sent))

    assert back.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert back.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nrubbish", b"400 Bad Request"),
        (
            b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nrubbish",
            b"404 Not Found",
        ),
    ],
)
def test_nothing_is_switched_to_another_protocol(
    tmp_path: Path, sent: bytes, status: bytes
) -> None:
    """Who asks for a tunnel or a WebSocket gets one answer, and the end."""
    back = asyncio.run(exchange(tmp_path, sent))

    assert back.startswith(b"HTTP/1.1 %b\r\n" % status)
    assert b"\r\nconnection: close\r\n" in back
    assert back.count(b"HTTP/1.1 ") == 1


def test_client_that_asks_first_may_send_its_body(tmp_path: Path) -> None:
    """curl waits for a 100 before it sends a large body, and gets none for one too large."""
    head = (
        b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        b"Content-Length: %d\r\n\r\n"
    )

    async def ask() -> tuple[bytes, bytes, bytes]:
        async with ingest(tmp_path) as running:
            small, large = await running.connect(), await running.connect()
            body = snapshot().to_json()
            small[1].write(head % len(body))
            large[1].write(head % (MAX_BODY_BYTES + 1))
            said = await asyncio.wait_for(small[0].readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
            small[1].write(body)
            heads = said, (await answer(small)).encode(), (await answer(large)).encode()
            for peer in (small, large):
                peer[1].close()
            return heads

    said, taken, refused = asyncio.run(ask())
    assert said == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert taken.startswith(b"HTTP/1.1 200 ")
    assert refused.startswith(b"HTTP/1.1 413 ")


def test_answer_to_head_has_no_body(tmp_path: Path) -> None:
    """HEAD is refused like any other method here, in a way that keeps the connection in step."""
    sent = b"HEAD /v1/snapshots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    back = asyncio.run(exchange(tmp_path, sent))

    assert back.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert back.endswith(b"\r\n\r\n")


def test_bound_on_a_request_is_for_each_anew(tmp_path: Path) -> None:
    """A connection may carry more than one request may have, in requests that come in pieces."""
    sent = request(b"x" * 60_000)

    async def push_often() -> set[str]:
        async with ingest(tmp_path, app=Echo()) as running:
            peer = await running.connect()
            heads = set()
            for _ in range(20):
                peer[1].write(sent[:50_000])
                await asyncio.sleep(0.005)
                peer[1].write(sent[50_000:])
                heads.add((await answer(peer))[:12])
            peer[1].close()
            return heads

    assert asyncio.run(push_often()) == {"HTTP/1.1 200"}


def test_body_is_held_up_to_its_limit_only(tmp_path: Path) -> None:
    """A body without an end is answered once it is too large; the rest is thrown away."""

    async def send_without_end() -> tuple[str, str]:
        async with ingest(tmp_path) as running:
            peer = await running.connect()
            peer[1].write(b"POST /v1/snapshots HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            refused = asyncio.create_task(answer(peer))
            while not refused.done():
                peer[1].write(CHUNK)
                await asyncio.sleep(0)
            for _ in range(600):
                peer[1].write(CHUNK)
                await asyncio.sleep(0)
            peer[1].write(b"0\r\n\r\n" + request(snapshot().to_json()))
            answers = await refused, await answer(peer)
            peer[1].close()
            return answers

    refused, next_one = asyncio.run(send_without_end())
    assert refused.startswith("HTTP/1.1 413 ")
    assert next_one.startswith("HTTP/1.1 200 ")


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
def test_connection_that_ends_no_request_is_dropped(
    tmp_path: Path, sent: bytes, malformed: int, trickle: bytes
) -> None:
    """Saying nothing, or never coming to an end, holds a connection for a limited time only."""

    async def dawdle() -> tuple[float, dict[str, int]]:
        async with ingest(tmp_path, limit_seconds=LIMIT_SECONDS) as running:
            started = time.monotonic()
            peer = await running.connect()
            peer[1].write(sent)
            await until_closed(peer, trickle if sent else b"")
            return time.monotonic() - started, dict(running.results)

    seconds, results = asyncio.run(dawdle())
    assert LIMIT_SECONDS * 0.9 < seconds < LIMIT_SECONDS * 20
    assert results["malformed"] == malformed


def test_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    """Answers that are not read are dropped with their connection."""

    async def ignore_answers() -> float:
        async with ingest(tmp_path, limit_seconds=LIMIT_SECONDS) as running:
            _, writer = await running.connect()
            # The reader stops by itself at twice its limit, far below what is sent here.
            writer.write(request(b"{}") * 100_000)
            started = time.monotonic()
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(writer.drain(), PATIENCE_SECONDS)
            return time.monotonic() - started

    assert asyncio.run(ignore_answers()) < LIMIT_SECONDS * 10


@tried_again
def test_connection_in_use_is_kept(tmp_path: Path) -> None:
    """Each answer gives a connection its whole time again, so that a rank needs only one."""
    started = time.monotonic()

    async def push_often() -> list[str]:
        async with ingest(tmp_path, limit_seconds=LIMIT_SECONDS) as running:
            peer = await running.connect()
            answers: list[str] = []
            while time.monotonic() < started + 3 * LIMIT_SECONDS:
                peer[1].write(request(snapshot(sequence=len(answers)).to_json()))
                answers.append(await answer(peer))
                await asyncio.sleep(LIMIT_SECONDS / 5)
            peer[1].close()
            return answers

    assert {head[:12] for head in asyncio.run(push_often())} == {"HTTP/1.1 200"}


def test_probe_pushes_more_often_than_its_connection_is_dropped() -> None:
    """A rank that misses a few pushes still finds its connection open."""
    assert REQUEST_SECONDS > 10 * INTERVAL_SECONDS


def test_connection_beyond_the_bound_is_answered_and_closed(tmp_path: Path) -> None:
    """A connection too many is refused at once and counted; it has room after another one left."""

    async def crowd() -> tuple[str, bytes, int, str]:
        async with ingest(tmp_path, connections=4) as running:
            inside = [await running.connect() for _ in range(2)]
            refused = await running.connect()
            refusal, rest = await answer(refused), await refused[0].read()
            turned_away = running.results["turned_away"]
            inside[0][1].close()
            await running.until_open(1)
            late = await running.connect()
            late[1].write(request(snapshot().to_json()))
            head = await answer(late)
            for peer in (inside[1], refused, late):
                peer[1].close()
            return refusal, rest, turned_away, head

    refusal, rest, turned_away, head = asyncio.run(crowd())
    assert refusal.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert refusal.endswith('{"error": "full"}')
    assert rest == b""
    assert turned_away == 1
    assert head.startswith("HTTP/1.1 200")


def test_refused_connections_harm_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Turning a connection away leaves no trace of an error, also when it is gone already."""

    async def crowd() -> str:
        async with ingest(tmp_path, connections=2) as running:
            rank = await running.connect()
            for number in range(20):
                peer = await running.connect()
                if number % 2:
                    peer[1].write(b"x" * 1_000)
                    peer[1].transport.abort()
                else:
                    await until_closed(peer)
            rank[1].write(request(snapshot().to_json()))
            head = await answer(rank)
            rank[1].close()
            return head

    assert asyncio.run(crowd()).startswith("HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

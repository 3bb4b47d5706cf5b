"""The ingest listener knows whom it talks to, how many they are, and does not wait for ever."""

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from exporter.ingest_app import ingest_app, no_results
from exporter.peers import REQUEST_SECONDS, Door, ingest_protocol, uid_of
from exporter.ranks import RankStore
from exporter.server import Listener
from exporter.sockets import UnixListener, open_loopback
from rank_probe.push import INTERVAL_SECONDS
from tests.exporter.running import PATIENCE_SECONDS
from tests.exporter.snapshots import snapshot

FLAG = "--ingest.socket"
# Long enough for a busy machine to answer in, short enough to wait for.
LIMIT_SECONDS = 0.5

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Ingest:
    """An ingest listener on a Unix socket and a loopback port, in the test's own event loop."""

    def __init__(self, directory: Path, connections: int, app: FastAPI | None) -> None:
        self.results = no_results()
        self._unix = UnixListener(directory / "e.sock", 0o666, FLAG)
        self._loopback = open_loopback("127.0.0.1:0", FLAG)
        self._path, self._port = directory / "e.sock", self._loopback.getsockname()[1]
        self._listener = Listener(
            app or ingest_app(RankStore(), self.results, 65_536),
            [self._unix.socket, self._loopback],
            protocol=ingest_protocol(Door(connections), self.results, LIMIT_SECONDS),
            idle_seconds=REQUEST_SECONDS,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Ingest"]:
        task = asyncio.create_task(self._listener.serve_until_told())
        try:
            while not self._listener.started:
                await asyncio.sleep(0.01)
            yield self
        finally:
            self._listener.should_exit = True
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
    directory: Path, connections: int = 100, app: FastAPI | None = None
) -> AsyncIterator[Ingest]:
    async with Ingest(directory, connections, app).serving() as running:
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


async def seconds_until_closed(peer: Peer, trickle: bytes = b"") -> float:
    """Return how long the other side keeps *peer* open, which goes on sending *trickle*."""
    started = time.monotonic()
    closed = asyncio.create_task(peer[0].read())
    while not closed.done() and time.monotonic() < started + PATIENCE_SECONDS:
        peer[1].write(trickle)
        await asyncio.wait([closed], timeout=0.05)
    assert closed.done(), "never closed"
    peer[1].close()
    return time.monotonic() - started


def test_application_learns_the_peer_of_each_connection(tmp_path: Path) -> None:
    """Over the Unix socket a request comes with the user who connected, over loopback with none."""
    app = FastAPI()

    @app.post("/v1/snapshots")
    async def who(request: Request) -> dict[str, int | None]:
        return {"uid": uid_of(request.scope)}

    async def ask() -> tuple[str, str]:
        async with ingest(tmp_path, app=app) as running:
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
    assert f'{{"uid":{os.geteuid()}}}' in over_unix
    assert '{"uid":null}' in over_loopback


def test_request_without_a_uid_is_nobodys() -> None:
    """Should a server not say who the peer is, nothing belongs to him."""
    assert uid_of({"type": "http"}) is None
    assert uid_of({"type": "http", "state": {}}) is None


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
        async with ingest(tmp_path) as running:
            peer = await running.connect()
            peer[1].write(sent)
            seconds = await seconds_until_closed(peer, trickle if sent else b"")
            return seconds, dict(running.results)

    seconds, results = asyncio.run(dawdle())
    assert LIMIT_SECONDS * 0.9 < seconds < LIMIT_SECONDS * 4
    assert results["malformed"] == malformed


def test_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    """Answers that nobody takes are thrown away with their connection."""

    async def ignore_answers() -> float:
        async with ingest(tmp_path) as running:
            _, writer = await running.connect()
            # The reader stops by itself at twice its limit, far below what is sent here.
            writer.write(request(b"{}") * 100_000)
            started = time.monotonic()
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(writer.drain(), PATIENCE_SECONDS)
            return time.monotonic() - started

    assert asyncio.run(ignore_answers()) < LIMIT_SECONDS * 10


def test_connection_in_use_is_kept(tmp_path: Path) -> None:
    """Each answer gives a connection its whole time again, so that a rank needs only one."""
    started = time.monotonic()

    async def push_often() -> list[str]:
        async with ingest(tmp_path) as running:
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
    """Who comes too many is told so at once, is counted, and has room when another has left."""

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
    assert refusal.endswith(
        '{"error": "Too many ingest connections are open on this node, in all or of this user; '
        'close idle ones, or raise --ingest.connections-per-rank."}'
    )
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
                    await seconds_until_closed(peer)
            rank[1].write(request(snapshot().to_json()))
            head = await answer(rank)
            rank[1].close()
            return head

    assert asyncio.run(crowd()).startswith("HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_one_user_cannot_keep_the_others_out() -> None:
    """Half of the places is the most that one user gets, and all over loopback count as one."""
    door = Door(8)

    assert [door.enter(1000) for _ in range(5)] == [True] * 4 + [False]
    assert [door.enter(None) for _ in range(3)] == [True] * 3
    assert door.enter(1001)
    assert not door.enter(1002)
    door.leave(1000)
    assert door.enter(1002)


def test_smallest_bound_lets_one_in() -> None:
    """A bound of one connection is one, not none."""
    door = Door(1)

    assert door.enter(1000)
    assert not door.enter(1001)


def limit_files(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    limits: Any = lambda _: (soft, soft)  # noqa: E731 - as short as what it replaces
    monkeypatch.setattr(resource, "getrlimit", limits)


def test_bound_leaves_files_for_the_rest_of_the_exporter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However high the flag is set, connections take half of the process's files at most."""
    limit_files(monkeypatch, 16)
    door = Door(1_000)

    assert [door.enter(uid) for uid in range(9)] == [True] * 8 + [False]
    assert "only 8 of 1000 ingest connections" in caplog.text


@pytest.mark.parametrize("soft", [16, resource.RLIM_INFINITY])
def test_bound_that_fits_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int
) -> None:
    """Nobody is warned of a limit that is not in the way."""
    limit_files(monkeypatch, soft)
    door = Door(8)

    assert [door.enter(uid) for uid in range(9)] == [True] * 8 + [False]
    assert caplog.text == ""

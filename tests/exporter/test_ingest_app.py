"""The ingest listener answers every push with the right status, one sentence, and a count."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from exporter.ingest_app import ingest_app, no_results
from exporter.peers import UID
from exporter.ranks import RankLimits, RankStore
from tests.exporter.snapshots import snapshot

MAX_BODY_BYTES = 2_000


class Listener:
    """The ingest application, called as a server would call it."""

    def __init__(self, limits: RankLimits | None = None) -> None:
        self.store = RankStore(limits)
        self.results = no_results()
        self._app = ingest_app(self.store, self.results, MAX_BODY_BYTES)

    def send(
        self, method: str, path: str, content: Any = None, uid: int | None = None
    ) -> httpx.Response:
        return asyncio.run(self._send(method, path, content, uid))

    def push(self, content: Any, uid: int | None = None) -> httpx.Response:
        return self.send("POST", "/v1/snapshots", content, uid)

    async def _send(self, method: str, path: str, content: Any, uid: int | None) -> httpx.Response:
        async def as_user(scope: Any, receive: Any, send: Any) -> None:
            await self._app({**scope, "state": {UID: uid}}, receive, send)

        transport = httpx.ASGITransport(as_user)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.request(method, path, content=content)

    def counted(self) -> dict[str, int]:
        return {result: count for result, count in self.results.items() if count}


def test_valid_snapshot_is_taken() -> None:
    """A push ends up in the store and is counted as accepted."""
    listener = Listener()
    answer = listener.push(snapshot().to_json())

    assert (answer.status_code, answer.json()) == (200, {})
    assert [held.snapshot for held in listener.store.ranks()] == [snapshot()]
    assert listener.counted() == {"accepted": 1}


def test_repeated_snapshot_is_no_error() -> None:
    """The probe may send the same state twice; the second is ignored with a 200."""
    listener = Listener()
    listener.push(snapshot().to_json())
    answer = listener.push(snapshot().to_json())

    assert (answer.status_code, answer.json()) == (200, {})
    assert listener.counted() == {"accepted": 1, "ignored": 1}


@pytest.mark.parametrize(
    ("content", "status", "result"),
    [
        (b"\xff", 400, "malformed"),
        (b"not json", 400, "malformed"),
        (b"x" * (MAX_BODY_BYTES + 1), 413, "oversized"),
        (snapshot(rank=9).to_json(), 422, "invalid"),
        (snapshot(started_timestamp_seconds=1.0).to_json(), 409, "superseded"),
        (snapshot(rank=1).to_json(), 429, "no_room"),
    ],
)
def test_refusal_is_a_sentence_and_a_count(content: bytes, status: int, result: str) -> None:
    """Each kind of bad push has its status, says why in one sentence, and is counted."""
    listener = Listener(RankLimits(ranks=1))
    listener.push(snapshot().to_json())
    answer = listener.push(content)

    assert answer.status_code == status
    assert answer.json().keys() == {"error"}
    assert answer.json()["error"].endswith(".")
    assert listener.counted() == {"accepted": 1, result: 1}
    assert [held.snapshot for held in listener.store.ranks()] == [snapshot()]


def test_two_jobs_of_one_name_each_get_a_clear_answer() -> None:
    """Of two users with a job `local`, one is seen and the other is told to name his."""
    listener = Listener()
    theirs, mine = snapshot(job_id="local"), snapshot(job_id="local", pid=1, attempt=7)

    assert listener.push(theirs.to_json(), uid=1000).status_code == 200
    refusal = listener.push(mine.to_json(), uid=1001)
    assert refusal.status_code == 403
    assert refusal.json() == {
        "error": "Rank 0 of job 'local' belongs to another user of this node (uid 1000); "
        "set RANKSKEW_JOB_ID to a name that is only yours."
    }
    assert listener.push(mine.to_json()).status_code == 403
    assert listener.counted() == {"accepted": 1, "forbidden": 2}
    assert [held.snapshot for held in listener.store.ranks()] == [theirs]


def test_oversized_stream_is_cut_off_before_it_is_held() -> None:
    """A body without a length is read up to the limit and not further."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 1_000

    listener = Listener()
    answer = listener.push(endless())

    assert answer.status_code == 413
    assert sent == 3
    assert listener.counted() == {"oversized": 1}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/snapshots", 405),
        ("GET", "/metrics", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
    ],
)
def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """The ingest listener takes snapshots; it shows nothing."""
    answer = Listener().send(method, path)

    assert answer.status_code == status
    assert "POST /v1/snapshots" in answer.json()["error"]

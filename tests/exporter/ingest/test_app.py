"""The ingest listener answers every push with the right status, one sentence, and a count."""

import os
from pathlib import Path

import pytest

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.http import Answer, Request
from exporter.ingest.token_file import TokenFile
from exporter.nvml.expected import ExpectedGpus
from exporter.operator.gpus import GpuControl, GpuOrder
from exporter.operator.levels import Order
from exporter.ranks.limits import RankLimits
from exporter.ranks.store import RankStore
from tests.exporter.snapshots import snapshot

MAX_BODY_BYTES = 2_000


class Listener:
    """The ingest application, called as its listener would call it."""

    def __init__(
        self,
        limits: RankLimits | None = None,
        token: TokenFile | None = None,
        gpus: GpuControl | None = None,
    ) -> None:
        self.store = RankStore(limits)
        self.counts = IngestCounts()
        self.app = IngestApp(self.store, self.counts, MAX_BODY_BYTES, token, gpus)

    def send(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        uid: int | None = None,
        authorization: str = "",
    ) -> Answer:
        return self.app.answer(Request(uid, method, path, authorization, body=bytearray(content)))

    def push(self, content: bytes, uid: int | None = None, authorization: str = "") -> Answer:
        return self.send("POST", "/v1/snapshots", content, uid, authorization)

    def order(self, content: bytes, uid: int | None = None, authorization: str = "") -> Answer:
        return self.send("POST", "/v1/control", content, uid, authorization)

    def counted(self) -> dict[str, int]:
        return {result: count for result, count in self.counts.results.items() if count}


def test_valid_snapshot_is_taken() -> None:
    """A push ends up in the store and is counted as accepted."""
    listener = Listener()
    answer = listener.push(snapshot().to_json())

    assert (answer.status, answer.content) == (200, {})
    assert [held.snapshot for held in listener.store.ranks()] == [snapshot()]
    assert listener.counted() == {"accepted": 1}


def test_repeated_snapshot_is_no_error() -> None:
    """The probe may send the same state twice; the second is ignored with a 200."""
    listener = Listener()
    listener.push(snapshot().to_json())
    answer = listener.push(snapshot().to_json())

    assert (answer.status, answer.content) == (200, {})
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

    assert answer.status == status
    assert answer.content.keys() == {"error"}
    assert answer.content["error"].endswith(".")
    assert listener.counted() == {"accepted": 1, result: 1}
    assert [held.snapshot for held in listener.store.ranks()] == [snapshot()]


def test_two_jobs_of_one_name_each_get_a_clear_answer() -> None:
    """Of two users with a job `local`, one is seen and the other is told to name his."""
    listener = Listener()
    theirs, mine = snapshot(job_id="local"), snapshot(job_id="local", pid=1, attempt=7)

    assert listener.push(theirs.to_json(), uid=1000).status == 200
    refusal = listener.push(mine.to_json(), uid=1001)
    assert refusal.status == 403
    assert refusal.content == {
        "error": "Rank 0 of job 'local' belongs to another user of this node (uid 1000); "
        "set RANKSKEW_JOB_ID to a unique name."
    }
    assert listener.push(mine.to_json()).status == 403
    assert listener.counted() == {"accepted": 1, "forbidden": 2}
    assert [held.snapshot for held in listener.store.ranks()] == [theirs]


def test_body_announced_too_large_is_refused_without_it() -> None:
    """What the length says is enough: nothing of the body has to come."""
    listener = Listener()
    request = Request(None, "POST", "/v1/snapshots", content_length=MAX_BODY_BYTES + 1)

    assert listener.app.answer(request).status == 413
    assert listener.counted() == {"oversized": 1}


@pytest.mark.parametrize(
    ("method", "path", "count"),
    [("POST", "/v1/snapshots", 1), ("GET", "/v1/snapshots", 0), ("POST", "/v1/control", 0)],
)
def test_snapshot_that_broke_off_is_counted(method: str, path: str, count: int) -> None:
    """A process killed in the middle of its push leaves a count."""
    listener = Listener()
    listener.app.broken_off(Request(None, method, path))

    assert listener.counts.results["malformed"] == count


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/snapshots", 405),
        ("GET", "/v1/control", 405),
        ("GET", "/metrics", 404),
        ("GET", "/docs", 404),
        ("POST", "/v1/gpus", 404),
    ],
)
def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """The ingest listener takes snapshots and orders; it shows nothing."""
    answer = Listener().send(method, path)

    assert answer.status == status
    assert "POST to /v1/snapshots and /v1/control;" in answer.content["error"]


def test_wrong_path_is_told_that_gpus_are_released_here() -> None:
    """Where GPUs can be released, the paths that are served include it."""
    listener = Listener(gpus=GpuControl(FakeNvml(), ExpectedGpus()))
    answer = listener.send("POST", "/v1/gpu")

    assert answer.status == 404
    assert "POST to /v1/snapshots, /v1/control and /v1/gpus;" in answer.content["error"]


def test_order_is_the_answer_to_the_next_push() -> None:
    """What the operator asks for reaches the rank with its next push, and stays the answer."""
    listener = Listener()
    listener.push(snapshot().to_json(), uid=1000)
    given = listener.order(Order("llama", "off").to_json(), uid=1000)

    assert (given.status, given.content) == (200, {"ranks": 1})
    for sequence in (2, 3):
        answer = listener.push(snapshot(sequence=sequence).to_json(), uid=1000)
        assert (answer.status, answer.content) == (200, {"level": "off"})


def test_order_for_a_run_that_ended_is_not_for_the_next() -> None:
    """A new run that takes the name of a finished one is told nothing."""
    listener = Listener()
    listener.push(snapshot().to_json(), uid=1000)
    listener.order(Order("llama", "off").to_json(), uid=1000)
    listener.push(snapshot(sequence=2, finished=True).to_json(), uid=1000)

    assert listener.push(snapshot(attempt=1).to_json(), uid=1000).content == {}


@pytest.mark.parametrize(
    ("content", "uid", "status"),
    [
        (b"{", 1000, 422),
        (b"x" * (MAX_BODY_BYTES + 1), 1000, 413),
        (Order("nobody", "off").to_json(), 1000, 404),
        (Order("llama", "off").to_json(), 1001, 403),
        (Order("llama", "off").to_json(), None, 403),
    ],
)
def test_refused_order_is_a_sentence(content: bytes, uid: int | None, status: int) -> None:
    """A wrong, aimless or forbidden order is answered with what is wrong, and changes nothing."""
    listener = Listener()
    listener.push(snapshot().to_json(), uid=1000)
    answer = listener.order(content, uid)

    assert answer.status == status
    assert answer.content["error"].endswith(".")
    assert listener.push(snapshot(sequence=2).to_json(), uid=1000).content == {}
    assert listener.counted() == {"accepted": 2}


@pytest.fixture
def guarded(tmp_path: Path) -> Listener:
    """Return a listener that wants a token over TCP."""
    (tmp_path / "token").write_text("s3cret")
    return Listener(token=TokenFile(tmp_path / "token", "--ingest.token-file"))


@pytest.mark.parametrize("shown", ["", "Bearer guess"])
@pytest.mark.parametrize("path", ["/v1/snapshots", "/v1/control"])
def test_tcp_needs_the_token(guarded: Listener, path: str, shown: str) -> None:
    """Without the right token nothing is taken: 401, one sentence, a count."""
    answer = guarded.send("POST", path, snapshot().to_json(), None, shown)

    assert answer.status == 401
    assert answer.headers == (("WWW-Authenticate", "Bearer"),)
    assert answer.content["error"].endswith(
        "set RANKSKEW_TOKEN_FILE to a file with the same token."
    )
    assert guarded.counted() == {"unauthorized": 1}
    assert guarded.store.ranks() == []


def test_right_token_opens_tcp(guarded: Listener) -> None:
    """With the token a rank reports over TCP, and is controlled there."""
    assert guarded.push(snapshot().to_json(), authorization="Bearer s3cret").status == 200
    order = Order("llama", "off").to_json()
    given = guarded.order(order, authorization="Bearer s3cret")
    assert (given.status, given.content) == (200, {"ranks": 1})


def test_unix_socket_needs_no_token(guarded: Listener) -> None:
    """There the kernel says who comes."""
    assert guarded.push(snapshot().to_json(), uid=1000).status == 200


class FakeNvml:
    """A supervisor of which is only known that it was released."""

    released = False

    def release(self, seconds: float) -> None:
        self.released = True

    def resume(self) -> None:
        self.released = False


@pytest.mark.parametrize(("uid", "status"), [(os.geteuid(), 200), (4711, 403), (None, 401)])
def test_gpus_are_released_for_whom_the_kernel_knows(
    tmp_path: Path, uid: int | None, status: int
) -> None:
    """The order reaches the GPUs of the exporter's own user, and of nobody else."""
    (tmp_path / "token").write_text("s3cret")
    nvml = FakeNvml()
    token = TokenFile(tmp_path / "token", "--ingest.token-file")
    listener = Listener(token=token, gpus=GpuControl(nvml, ExpectedGpus()))
    answer = listener.send("POST", "/v1/gpus", GpuOrder("release").to_json(), uid)

    assert answer.status == status
    assert nvml.released == (status == 200)


@pytest.mark.parametrize("path", ["/v1/snapshots", "/v1/control"])
def test_web_page_may_not_post(path: str) -> None:
    """A browser on the node reaches loopback on behalf of any site, and says of which."""
    listener = Listener()
    request = Request(None, "POST", path, origin="https://evil.example")
    request.body += snapshot().to_json()
    answer = listener.app.answer(request)

    assert answer.status == 403
    assert answer.content["error"].startswith("Web pages may not post here")
    assert listener.store.ranks() == []
    assert listener.counted() == {"forbidden": 1}

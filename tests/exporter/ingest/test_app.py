"""The ingest listener answers every push with the right status, one sentence, and a count."""

import dataclasses
from pathlib import Path

import pytest

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.schema import RESULTS
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.levels import Orders
from exporter.operator.orders import Order
from exporter.ranks.limits import RankLimits
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import LIFECYCLE, Snapshot
from rank_probe.wire.stages import STAGES
from tests.exporter.asgi import Answer, ask
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

MAX_BODY_BYTES = 2_000
USER, OTHER = Peer(1000), Peer(1001)


class Listener:
    """The ingest application, called as its listener would call it."""

    def __init__(
        self,
        limits: RankLimits | None = None,
        token: TokenFile | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = RankStore(limits, clock)
        self.counts = IngestCounts()
        orders = Orders(self.store)
        self.app = IngestApp(self.store, self.counts, orders, MAX_BODY_BYTES, token)

    def send(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        peer: Peer | None = None,
        **headers: str,
    ) -> Answer:
        headers.setdefault("content_type", "application/json")
        answer = ask(self.app, method, path, content, peer=peer, **headers)
        assert answer is not None
        return answer

    def push(self, content: bytes, peer: Peer | None = None, **headers: str) -> Answer:
        return self.send("POST", "/v1/snapshots", content, peer, **headers)

    def order(self, content: bytes, peer: Peer | None = None, **headers: str) -> Answer:
        return self.send("POST", "/v1/control", content, peer, **headers)

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


def test_rank_without_a_judge_is_told_that_it_is_late() -> None:
    """The answer has the stage in which it is behind the ranks of its node, for two minutes."""
    clock = Clock()
    listener = Listener(clock=clock)
    said = []
    for number in range(1, 31):
        clock.seconds += 5.0
        for rank, data in enumerate((0.25, 0.1, 0.1)):
            block = {"data": data, "forward": 0.3, "sync": 0.4 - data}
            mine = {"rank": rank, "sequence": number}
            told = snapshot(**mine, block_steps=64, block_seconds=block)
            answer = listener.push(told.to_json())
            assert answer.status == 200
            said += [answer.content] if rank == 0 or answer.content else []

    assert said == [{}] * 26 + [{"late": "data"}] * 4


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
    """Each kind of bad push has its status and one sentence that explains it, and is counted."""
    listener = Listener(RankLimits(ranks=1))
    listener.push(snapshot().to_json())
    answer = listener.push(content)

    assert answer.status == status
    assert answer.content.keys() == {"error"}
    assert answer.content["error"].endswith(".")
    assert listener.counted() == {"accepted": 1, result: 1}
    assert [held.snapshot for held in listener.store.ranks()] == [snapshot()]


@pytest.mark.parametrize("other", [OTHER, Peer(1000, "a-container"), None])
def test_two_jobs_of_one_name_each_get_a_clear_answer(other: Peer | None) -> None:
    """Of two users or containers with a job `local`, one is asked to name theirs."""
    listener = Listener()
    theirs, mine = snapshot(job_id="local"), snapshot(job_id="local", pid=1, attempt=7)

    assert listener.push(theirs.to_json(), peer=USER).status == 200
    refusal = listener.push(mine.to_json(), peer=other)
    assert refusal.status == 403
    assert refusal.content == {
        "error": "Rank 0 of job 'local' belongs to another user or container on this node "
        "(uid 1000); set RANKSKEW_JOB_ID to a unique name."
    }
    assert listener.counted() == {"accepted": 1, "forbidden": 1}
    assert [held.snapshot for held in listener.store.ranks()] == [theirs]


def test_body_announced_too_large_is_refused_without_it() -> None:
    """The announced length is enough: the body need not arrive."""
    listener = Listener()
    length = str(MAX_BODY_BYTES + 1)
    answer = ask(listener.app, "POST", "/v1/snapshots", content_length=length)

    assert answer is not None
    assert answer.status == 413
    assert listener.counted() == {"oversized": 1}


@pytest.mark.parametrize(("path", "count"), [("/v1/snapshots", 1), ("/v1/control", 0)])
def test_snapshot_that_broke_off_is_counted(path: str, count: int) -> None:
    """A process killed in the middle of its push leaves a count, and gets no answer."""
    listener = Listener()

    assert ask(listener.app, "POST", path) is None
    assert listener.counts.results["malformed"] == count


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/snapshots", 405),
        ("GET", "/v1/control", 405),
        ("GET", "/metrics", 404),
        ("GET", "/docs", 404),
        ("POST", "/v1/gpus", 404),
        ("POST", "/v1/snapshots/", 404),
    ],
)
def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """The ingest listener takes snapshots and orders; it shows nothing of a job."""
    answer = Listener().send(method, path)

    assert answer.status == status
    assert "POST" in answer.content["error"]
    assert (answer.headers.get("allow") == "POST") is (status == 405)


def test_description_has_what_is_posted() -> None:
    """Who pushes without the probe finds every field, and what each status means."""
    description = Listener().send("GET", "/openapi.json").content
    push = description["paths"]["/v1/snapshots"]["post"]
    body = push["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = description["components"]["schemas"][body.rpartition("/")[2]]["properties"]

    assert fields.keys() == {field.name for field in dataclasses.fields(Snapshot)}
    assert fields["stage"]["enum"] == list(STAGES)
    assert fields["lifecycle_seconds"]["properties"].keys() == set(LIFECYCLE)
    assert push["responses"].keys() == {str(status) for status in RESULTS.values()}
    assert "/v1/control" in description["paths"]


def test_oversized_order_is_refused() -> None:
    """What is too large is not read, whatever it is."""
    listener = Listener()

    assert listener.order(b"x" * (MAX_BODY_BYTES + 1), USER).status == 413


def test_order_is_the_answer_to_the_next_push() -> None:
    """What the operator asks for reaches the rank with its next push, and stays the answer."""
    listener = Listener()
    listener.push(snapshot().to_json(), peer=USER)
    given = listener.order(Order("llama", "off").to_json(), peer=USER)

    assert (given.status, given.content) == (200, {"ranks": 1})
    for sequence in (2, 3):
        answer = listener.push(snapshot(sequence=sequence).to_json(), peer=USER)
        assert (answer.status, answer.content) == (200, {"level": "off"})


def test_order_for_a_run_that_ended_is_not_for_the_next() -> None:
    """A new run that takes the name of a finished one is told nothing."""
    listener = Listener()
    listener.push(snapshot().to_json(), peer=USER)
    listener.order(Order("llama", "off").to_json(), peer=USER)
    listener.push(snapshot(sequence=2, finished=True).to_json(), peer=USER)

    assert listener.push(snapshot(attempt=1).to_json(), peer=USER).content == {}


@pytest.mark.parametrize(
    ("content", "peer", "status"),
    [
        (b"{", USER, 422),
        (Order("nobody", "off").to_json(), USER, 404),
        (Order("llama", "off").to_json(), OTHER, 403),
        (Order("llama", "off").to_json(), None, 403),
    ],
)
def test_refused_order_is_a_sentence(content: bytes, peer: Peer | None, status: int) -> None:
    """A wrong, aimless or forbidden order is answered with what is wrong, and changes nothing."""
    listener = Listener()
    listener.push(snapshot().to_json(), peer=USER)
    answer = listener.order(content, peer)

    assert answer.status == status
    assert answer.content["error"].endswith(".")
    assert listener.push(snapshot(sequence=2).to_json(), peer=USER).content == {}
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
    answer = guarded.send("POST", path, snapshot().to_json(), authorization=shown)

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
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
    """Over the Unix socket the kernel identifies the client."""
    assert guarded.push(snapshot().to_json(), peer=USER).status == 200


@pytest.mark.parametrize("path", ["/v1/snapshots", "/v1/control"])
def test_web_page_may_not_post(path: str) -> None:
    """A browser on the node reaches loopback on behalf of any site, and names the site."""
    listener = Listener()
    answer = listener.send("POST", path, snapshot().to_json(), origin="https://evil.example")

    assert answer.status == 403
    assert answer.content["error"].startswith("Web pages may not post here")
    assert listener.store.ranks() == []
    assert listener.counted() == {"forbidden": 1}

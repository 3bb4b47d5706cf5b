"""The ingest listener answers every push with the right status, one sentence, and a count."""

import dataclasses
from pathlib import Path

import pytest

from exporter.ingest.schema import RESULTS
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.orders import CONTROL_PATH, Order
from exporter.ranks.limits import RankLimits
from rank_probe.wire.snapshot import RANK_INFO_LABELS, SNAPSHOT_PATH, Snapshot
from rank_probe.wire.stages import STAGES
from tests.exporter.asgi import Answer, ask
from tests.exporter.evidence.node import USER as EVIDENCE_USER
from tests.exporter.evidence.node import FakeNode
from tests.exporter.ingest.posting import MAX_BODY_BYTES, OTHER, USER, Ingest
from tests.exporter.snapshots import snapshot

PATHS = [SNAPSHOT_PATH, CONTROL_PATH]


def order(ingest: Ingest, given: Order, peer: Peer | None = USER, **headers: str) -> Answer:
    return ingest.send("POST", CONTROL_PATH, given.to_json(), peer, **headers)


def test_snapshot_is_taken_and_a_repeated_one_is_no_error() -> None:
    """The probe may send the same state twice; the second is ignored with a 200."""
    ingest = Ingest()
    for results in ({"accepted": 1}, {"accepted": 1, "ignored": 1}):
        answer = ingest.push(snapshot().to_json())
        assert (answer.status, answer.content) == (200, {})
        assert ingest.counted() == results
    assert [held.snapshot for held in ingest.store.ranks()] == [snapshot()]


def test_rank_without_a_judge_is_told_that_it_is_late() -> None:
    """The answer has the stage in which it is behind the ranks of its node, after two minutes."""
    ingest = Ingest()
    answers = []
    for number in range(1, 31):
        ingest.clock.seconds += 5.0
        for rank, data in enumerate((0.25, 0.1, 0.1)):
            block = {"data": data, "forward": 0.3, "sync": 0.4 - data}
            mine = {"rank": rank, "sequence": number}
            pushed = snapshot(**mine, block_steps=64, block_seconds=block)
            answer = ingest.push(pushed.to_json())
            assert answer.status == 200
            answers += [answer.content] if rank == 0 or answer.content else []

    assert answers == [{}] * 26 + [{"late": "data"}] * 4


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
    ingest = Ingest(RankLimits(ranks=1))
    ingest.push(snapshot().to_json())
    answer = ingest.push(content)

    assert answer.status == status
    assert answer.content.keys() == {"error"}
    assert answer.content["error"].endswith(".")
    assert ingest.counted() == {"accepted": 1, result: 1}
    assert [held.snapshot for held in ingest.store.ranks()] == [snapshot()]


@pytest.mark.parametrize("other", [OTHER, Peer(1000, "a-container"), None])
def test_two_jobs_of_one_name_each_get_a_clear_answer(other: Peer | None) -> None:
    """Of two users or containers with a job `local`, one is asked to name theirs."""
    ingest = Ingest()
    theirs, mine = snapshot(job_id="local"), snapshot(job_id="local", pid=1, attempt=7)

    assert ingest.push(theirs.to_json(), USER).status == 200
    refusal = ingest.push(mine.to_json(), other)
    assert refusal.status == 403
    assert refusal.content == {
        "error": "Rank 0 of job 'local' belongs to another user or container on this node "
        "(uid 1000); set RANKSKEW_JOB_ID to a unique name."
    }
    assert ingest.counted() == {"accepted": 1, "forbidden": 1}
    assert [held.snapshot for held in ingest.store.ranks()] == [theirs]


def test_body_announced_too_large_is_refused_without_it() -> None:
    """The announced length is enough: the body need not arrive."""
    ingest = Ingest()
    answer = ask(ingest.app, "POST", SNAPSHOT_PATH, content_length=str(MAX_BODY_BYTES + 1))

    assert answer is not None
    assert (answer.status, ingest.counted()) == (413, {"oversized": 1})
    assert ingest.send("POST", CONTROL_PATH, b"x" * (MAX_BODY_BYTES + 1), USER).status == 413


@pytest.mark.parametrize(("path", "count"), [(SNAPSHOT_PATH, 1), (CONTROL_PATH, 0)])
def test_snapshot_that_broke_off_is_counted(path: str, count: int) -> None:
    """A process killed in the middle of its push leaves a count, and gets no answer."""
    ingest = Ingest()

    assert ask(ingest.app, "POST", path) is None
    assert ingest.counts.results["malformed"] == count


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", SNAPSHOT_PATH, 405),
        ("GET", CONTROL_PATH, 405),
        ("GET", "/metrics", 404),
        ("GET", "/docs", 404),
        ("POST", "/v1/gpus", 404),
        ("POST", "/v1/snapshots/", 404),
    ],
)
def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """The ingest listener takes snapshots and orders; it shows nothing of a job."""
    answer = Ingest().send(method, path)

    assert answer.status == status
    assert "POST" in answer.content["error"]
    assert (answer.headers.get("allow") == "POST") is (status == 405)


def test_description_has_what_is_posted() -> None:
    """Who pushes without the probe finds every field, and what each status means."""
    description = Ingest().send("GET", "/openapi.json").content
    push = description["paths"][SNAPSHOT_PATH]["post"]
    body = push["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = description["components"]["schemas"][body.rpartition("/")[2]]["properties"]

    assert fields.keys() == {field.name for field in dataclasses.fields(Snapshot)}
    assert fields["stage"]["enum"] == list(STAGES)
    assert fields["rank_info"]["properties"].keys() == set(RANK_INFO_LABELS)
    assert push["responses"].keys() == {str(status) for status in RESULTS.values()}
    assert CONTROL_PATH in description["paths"]
    for status, response in push["responses"].items():
        answer = response["content"]["application/json"]["schema"]["properties"]
        assert ("error" in answer) is (status != "200")


def test_order_is_the_answer_to_each_push_until_the_run_ends() -> None:
    """A new run that takes the name of a finished one is told nothing."""
    ingest = Ingest()
    ingest.push(snapshot().to_json(), USER)
    given = order(ingest, Order("llama", "off"))

    assert (given.status, given.content) == (200, {"ranks": 1})
    for changes in ({"sequence": 2}, {"sequence": 3}, {"sequence": 4, "finished": True}):
        answer = ingest.push(snapshot(**changes).to_json(), USER)
        assert (answer.status, answer.content) == (200, {"level": "off"})
    assert ingest.push(snapshot(attempt=1).to_json(), USER).content == {}


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
    """A wrong, aimless or forbidden order changes nothing."""
    ingest = Ingest()
    ingest.push(snapshot().to_json(), USER)
    answer = ingest.send("POST", CONTROL_PATH, content, peer)

    assert answer.status == status
    assert answer.content["error"].endswith(".")
    assert ingest.push(snapshot(sequence=2).to_json(), USER).content == {}
    assert ingest.counted() == {"accepted": 2}


@pytest.fixture
def guarded(tmp_path: Path) -> Ingest:
    """Return an application that wants a token over TCP."""
    (tmp_path / "token").write_text("s3cret")
    return Ingest(token=TokenFile(tmp_path / "token", "--ingest.token-file"))


@pytest.mark.parametrize("shown", ["", "Bearer guess"])
@pytest.mark.parametrize("path", PATHS)
def test_tcp_needs_the_token(guarded: Ingest, path: str, shown: str) -> None:
    answer = guarded.send("POST", path, snapshot().to_json(), authorization=shown)

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.content["error"].endswith("RANKSKEW_TOKEN_FILE to a file with the same token.")
    assert guarded.counted() == {"unauthorized": 1}
    assert guarded.store.ranks() == []


def test_right_token_opens_tcp(guarded: Ingest) -> None:
    """A rank reports over TCP, and is controlled there; over the Unix socket none is needed."""
    token = "Bearer s3cret"
    assert guarded.push(snapshot().to_json(), authorization=token).status == 200
    given = order(guarded, Order("llama", "off"), None, authorization=token)
    assert (given.status, given.content) == (200, {"ranks": 1})
    assert guarded.push(snapshot(job_id="unix").to_json(), USER).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_web_page_may_not_post(path: str) -> None:
    """A browser on the node reaches loopback on behalf of any site, and names the site."""
    ingest = Ingest()
    answer = ingest.send("POST", path, snapshot().to_json(), origin="https://evil.example")

    assert answer.status == 403
    assert answer.content["error"].startswith("Web pages may not post here")
    assert ingest.store.ranks() == []
    assert ingest.counted() == {"forbidden": 1}


def test_figures_come_every_ten_seconds_and_never_in_between() -> None:
    """A push that is ignored has none: the next one that is news has them."""
    node = FakeNode(gpus=1)
    ingest = Ingest(store=node.store, figures=node.service.pushed)
    answered: dict[int, list[int]] = {0: [], 1: []}
    for second in range(1, 62):
        node.run(1)
        for rank in (0, 1) if second > 3 else (0,):
            stages = {"data": 0.1 * second}
            pushed = snapshot(rank=rank, sequence=second, steps=2 * second, stage_seconds=stages)
            if second == 11:
                assert (
                    ingest.push(snapshot(rank=rank, sequence=10).to_json(), EVIDENCE_USER).content
                    == {}
                )
            answer = ingest.push(pushed.to_json(), EVIDENCE_USER).content
            if "figures" in answer:
                answered[rank].append(second)
                assert answer["figures"]["data_seconds"] == 0.05

    assert answered == {0: [11, 21, 31, 41, 51, 61], 1: [11, 21, 31, 41, 51, 61]}

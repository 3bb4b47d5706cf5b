"""The ingest answers every push, and every dry run, with the right status and one sentence."""

import copy
import dataclasses
import logging
import os
from pathlib import Path

import pytest

from exporter.errors import UsageError
from exporter.ingest.schema import RESULTS
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.orders import CONTROL_PATH, Order
from exporter.ranks.limits import BEGINNINGS_A_MINUTE, RankLimits
from exporter.scrapers import Scrapers
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH, RANK_INFO_LABELS, SNAPSHOT_PATH, Snapshot
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


FLAG = "--ingest.token-file"


@pytest.fixture
def token_path(tmp_path: Path) -> Path:
    token_path = tmp_path / "token"
    token_path.write_text("s3cret\n")
    token_path.chmod(0o600)
    return token_path


@pytest.mark.parametrize(
    ("header", "is_right"),
    [
        ("Bearer s3cret", True),
        ("bearer  s3cret ", True),
        ("", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Bearer s3cre", False),
        ("Bearer s3crets", False),
        ("Bearer é", False),
        ("Basic s3cret", False),
        ("s3cret", False),
    ],
)
def test_only_the_right_token_is_let_in(token_path: Path, header: str, is_right: bool) -> None:
    """A missing, wrong, cut or differently wrapped token is refused."""
    assert TokenFile(token_path, FLAG).is_shown_in(header) is is_right


@pytest.mark.parametrize("replace", [True, False])
def test_changed_file_counts_at_the_next_request(token_path: Path, replace: bool) -> None:
    """After a rotation, by a new file or in place, the new token is right and the old is not."""
    token = TokenFile(token_path, FLAG)
    if replace:
        (token_path.parent / "new").write_text("other1")
        os.replace(token_path.parent / "new", token_path)
    else:
        token_path.write_text("longer-token")

    assert token.is_shown_in(f"Bearer {token_path.read_text()}")
    assert not token.is_shown_in("Bearer s3cret")


@pytest.mark.parametrize("broken", [None, b"", b"two words", b"\xff", b"x" * 5_000])
def test_half_made_rotation_locks_nobody_out(
    token_path: Path, caplog: pytest.LogCaptureFixture, broken: bytes | None
) -> None:
    """While the file is missing or unusable the token before stays good, and that is said once."""
    token = TokenFile(token_path, FLAG)
    token_path.unlink()
    if broken is not None:
        token_path.write_bytes(broken)
    assert token.is_shown_in("Bearer s3cret")
    assert token.is_shown_in("Bearer s3cret")
    assert len(caplog.records) == 1
    token_path.write_text("next")
    assert token.is_shown_in("Bearer next")

    assert "the previous token stays valid" in caplog.text
    assert "two words" not in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"two words", b"two\nlines", b"\xff", b"x" * 5_000])
def test_file_without_a_token_ends_the_start(token_path: Path, content: bytes | None) -> None:
    """An exporter that was asked for a token does not start without one."""
    token_path.unlink()
    if content is not None:
        token_path.write_bytes(content)
    complaint = "No such file or directory" if content is None else "must hold one token"
    with pytest.raises(UsageError, match=rf"^{FLAG}.* {complaint}") as refusal:
        TokenFile(token_path, FLAG)

    assert "words" not in str(refusal.value)


def test_pipe_in_place_of_the_token_holds_nothing_up(token_path: Path) -> None:
    """Neither the start, nor a request after the file has become one."""
    token = TokenFile(token_path, FLAG)
    token_path.unlink()
    os.mkfifo(token_path)

    assert token.is_shown_in("Bearer s3cret")
    with pytest.raises(UsageError, match="it is not a regular file"):
        TokenFile(token_path, FLAG)


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o660, 1), (0o604, 1)])
def test_token_that_others_can_read_is_warned_of(
    token_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    """Only a group of trainers may read it; the exporter starts anyway."""
    token_path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        TokenFile(token_path, FLAG)

    assert caplog.text.count("chmod 0640 it") == warnings


def try_out(ingest: Ingest, content: bytes, peer: Peer | None = USER, **headers: str) -> Answer:
    return ingest.send("POST", DRY_RUN_PATH, content, peer, **headers)


def test_rank_that_could_report_is_told_so() -> None:
    """The answer has the exporter's version, and the rank is neither kept nor counted."""
    ingest = Ingest()
    answer = try_out(ingest, snapshot().to_json())

    assert answer.status == 200
    assert answer.content == {
        "version": __version__,
        "would_accept": True,
        "result": "accepted",
        "reason": None,
        "unknown_fields": 0,
        "scraped": [],
        "no_join": "",
    }
    assert ingest.store.ranks() == []
    assert ingest.counted() == {}


def test_dry_run_tells_why_ranks_of_the_job_cannot_be_compared() -> None:
    """Only ranks that push now count, and only their user learns it."""
    ingest = Ingest()
    for rank in (1, 0):
        no_join = "file_store" if rank else ""
        ingest.push(snapshot(rank=rank, no_join=no_join).to_json(), USER)
    ingest.push(snapshot(job_id="other", no_join="mpi_backend").to_json(), USER)
    asked = snapshot(rank=2).to_json()
    own, others = try_out(ingest, asked), try_out(ingest, asked, OTHER)
    unlike = try_out(ingest, snapshot(job_id="bench").to_json())
    ingest.clock.seconds += 10.0
    silent = try_out(ingest, asked)

    found = [answer.content["no_join"] for answer in (own, others, unlike, silent)]
    assert found == ["file_store", "", "", ""]


def test_dry_run_names_the_scrapers() -> None:
    """Who only asks learns whether a Prometheus fetches what the ranks report."""
    scrapers = Scrapers(lambda: 0.0)
    scrapers.see("10.0.0.7", "Prometheus/2.53.0")

    assert try_out(Ingest(scrapers=scrapers), snapshot().to_json()).content["scraped"] == [
        {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 0.0}
    ]


@pytest.mark.parametrize(
    ("content", "peer"),
    [
        (snapshot(sequence=2).to_json(), USER),
        (snapshot().to_json(), USER),
        (snapshot(job_id="another").to_json(), OTHER),
        (b"\xff", USER),
        (b"not json", USER),
        (b"[" * 1_000, USER),
        (b'{"job_id": 1}', USER),
        (snapshot(rank=9).to_json(), USER),
        (snapshot(job_id="\x1b[2J").to_json(), USER),
        (snapshot(started_timestamp_seconds=1.0).to_json(), USER),
        (snapshot(job_id="a third").to_json(), USER),
        (snapshot(sequence=2).to_json(), OTHER),
        (snapshot(sequence=2).to_json(), None),
        (snapshot(sequence=2).to_json(), Peer(1000, "a-container")),
        (snapshot(sequence=2).to_json(), Peer(0)),
    ],
)
def test_dry_run_says_what_the_push_would_be_told(content: bytes, peer: Peer | None) -> None:
    """It foretells result and sentence of the push that follows, and tells nothing else."""
    ingest = Ingest(RankLimits(jobs=2))
    ingest.push(snapshot().to_json(), USER)
    ingest.push(snapshot(job_id="second").to_json(), USER)
    before = copy.deepcopy((ingest.store.ranks(), ingest.counts))
    tried = try_out(ingest, content, peer)
    assert (ingest.store.ranks(), ingest.counts) == before
    pushed = ingest.push(content, peer)
    counted = before[1].results
    (result,) = [name for name, count in ingest.counted().items() if count > counted[name]]

    assert tried.status == pushed.status
    assert tried.content["would_accept"] is (pushed.status == 200)
    assert tried.content["result"] == result
    assert tried.content["reason"] == pushed.content.get("error")


def test_dry_run_pushes_nobody_out() -> None:
    """Where a push would make another owner's rank give way, a dry run leaves it."""
    ingest = Ingest(RankLimits(ranks=2))
    for rank in (0, 1):
        ingest.push(snapshot(rank=rank).to_json(), USER)
    held = ingest.store.ranks()
    answer = try_out(ingest, snapshot(job_id="newcomer").to_json(), OTHER)

    assert answer.content["would_accept"] is True
    assert ingest.store.ranks() == held


def test_guessing_is_no_faster_than_with_pushes() -> None:
    """A user may ask about as many ranks in a minute as may start; others are not held up.

    Asking costs nobody the ranks that may start.
    """
    ingest = Ingest(RankLimits(ranks=1))
    guesses = [
        try_out(ingest, snapshot(job_id=f"guess-{number}").to_json(), OTHER)
        for number in range(BEGINNINGS_A_MINUTE + 1)
    ]

    assert [guess.status for guess in guesses] == [200] * BEGINNINGS_A_MINUTE + [429]
    assert guesses[-1].content == {
        "error": "This user has asked too often in the last minute; ask again in a minute."
    }
    assert try_out(ingest, snapshot().to_json(), USER).status == 200
    assert ingest.push(snapshot().to_json(), OTHER).status == 200
    ingest.clock.seconds += 60.0
    assert try_out(ingest, snapshot(sequence=2).to_json(), OTHER).status == 200


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"x" * (MAX_BODY_BYTES + 1), {}, 413),
        (snapshot().to_json(), {"origin": "https://evil.example"}, 403),
        (snapshot().to_json(), {"authorization": "Bearer guess"}, 401),
    ],
)
def test_dry_run_is_admitted_as_a_push_is(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int
) -> None:
    """What may not push may not ask: a web page, a client without the token, a flood of bytes."""
    (tmp_path / "token").write_text("s3cret")
    ingest = Ingest(token=TokenFile(tmp_path / "token", "--ingest.token-file"))
    answer = try_out(ingest, content, None, **({"authorization": "Bearer s3cret"} | headers))

    assert answer.status == status
    assert answer.content.keys() == {"error"}

"""The ingest answers every push, and every dry run, with the right status and one sentence."""

import copy
import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

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
from tests.exporter.ingest.posting import MAX_BODY_BYTES, OTHER, USER, Ingest
from tests.exporter.snapshots import snapshot

FLAG = "--ingest.token-file"
OFF = Order("llama", "off").to_json()
SENT = snapshot().to_json()
NEXT = snapshot(sequence=2).to_json()
TOO_LARGE = b"x" * (MAX_BODY_BYTES + 1)


@pytest.fixture
def token_path(tmp_path: Path) -> Path:
    token_path = tmp_path / "token"
    token_path.write_text("s3cret\n")
    token_path.chmod(0o600)
    return token_path


def try_out(ingest: Ingest, content: bytes, peer: Peer | None = USER) -> Answer:
    return ingest.send("POST", DRY_RUN_PATH, content, peer)


def test_snapshot_is_taken_and_a_repeated_one_is_no_error() -> None:
    """The probe may send the same state twice; the second is ignored with a 200."""
    ingest = Ingest()
    for results in ({"accepted": 1}, {"accepted": 1, "ignored": 1}):
        answer = ingest.push(SENT)
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
            answers += [answer.content] if rank == 0 or answer.content else []

    assert answers == [{}] * 26 + [{"late": "data"}] * 4


def test_rank_is_told_its_figures() -> None:
    """A push that is ignored has none: the next one that is news has them."""
    ingest = Ingest(figures=lambda snapshot: {"data_seconds": snapshot.steps / 8})

    answers = [ingest.push(each).content for each in (SENT, SENT, NEXT)]
    assert answers == [{"figures": {"data_seconds": 12.5}}, {}, {"figures": {"data_seconds": 12.5}}]


def test_order_is_the_answer_to_each_push_until_the_run_ends() -> None:
    """A new run that takes the name of a finished one is told nothing."""
    ingest = Ingest()
    ingest.push(SENT, USER)
    given = ingest.send("POST", CONTROL_PATH, OFF, USER)

    assert (given.status, given.content) == (200, {"ranks": 1})
    for changes in ({"sequence": 2}, {"sequence": 3}, {"sequence": 4, "finished": True}):
        answer = ingest.push(snapshot(**changes).to_json(), USER)
        assert (answer.status, answer.content) == (200, {"level": "off"})
    assert ingest.push(snapshot(attempt=1).to_json(), USER).content == {}


EVIL = {"origin": "https://evil.example"}
IN_POD = Peer(1000, "a-container")


@pytest.mark.parametrize(
    ("path", "content", "peer", "headers", "status", "result"),
    [
        (SNAPSHOT_PATH, b"\xff", USER, {}, 400, "malformed"),
        (SNAPSHOT_PATH, b"not json", USER, {}, 400, "malformed"),
        (SNAPSHOT_PATH, snapshot(rank=9).to_json(), USER, {}, 422, "invalid"),
        (SNAPSHOT_PATH, snapshot(attempt=-1).to_json(), USER, {}, 422, "invalid"),
        (
            SNAPSHOT_PATH,
            snapshot(started_timestamp_seconds=1.0).to_json(),
            USER,
            {},
            409,
            "superseded",
        ),
        (SNAPSHOT_PATH, snapshot(rank=1).to_json(), USER, {}, 429, "no_room"),
        *((SNAPSHOT_PATH, NEXT, peer, {}, 403, "forbidden") for peer in (OTHER, IN_POD, None)),
        (CONTROL_PATH, b"{", USER, {}, 422, None),
        (CONTROL_PATH, Order("nobody", "off").to_json(), USER, {}, 404, None),
        *((CONTROL_PATH, OFF, peer, {}, 403, None) for peer in (OTHER, IN_POD, None)),
        # A browser on the node reaches loopback on behalf of any site, and names the site.
        *((path, NEXT, None, EVIL, 403, "forbidden") for path in (SNAPSHOT_PATH, CONTROL_PATH)),
        (DRY_RUN_PATH, NEXT, None, EVIL, 403, "forbidden"),
        # The announced length is enough: the body need not arrive.
        *(
            (path, content, USER, headers, 413, "oversized")
            for path in (SNAPSHOT_PATH, CONTROL_PATH, DRY_RUN_PATH)
            for content, headers in (
                (TOO_LARGE, {}),
                (b"", {"content_length": str(MAX_BODY_BYTES + 1)}),
            )
        ),
        ("/v1/gpus", b"", USER, {}, 404, None),
        ("/v1/snapshots/", NEXT, USER, {}, 404, None),
    ],
)
def test_refusal_is_a_sentence_and_a_count(
    path: str,
    content: bytes,
    peer: Peer | None,
    headers: dict[str, str],
    status: int,
    result: str | None,
) -> None:
    """Whatever comes changes nothing: the rank stays, at the level that it had."""
    ingest = Ingest(RankLimits(ranks=1))
    ingest.push(SENT, USER)
    answer = ingest.send("POST", path, content, peer, **headers)

    assert answer.status == status
    assert answer.content.keys() == {"error"}
    assert answer.content["error"].endswith(".")
    assert ingest.counted() == {"accepted": 1} | ({result: 1} if result else {})
    assert [held.snapshot for held in ingest.store.ranks()] == [snapshot()]
    assert ingest.push(NEXT, USER).content == {}


@pytest.mark.parametrize("path", ["/metrics", "/docs", SNAPSHOT_PATH, CONTROL_PATH])
def test_nothing_is_shown(path: str) -> None:
    """The ingest listener takes snapshots and orders; it shows nothing of a job."""
    answer = Ingest().send("GET", path)

    assert answer.status == (405 if path.startswith("/v1") else 404)
    assert "POST" in answer.content["error"]
    assert (answer.headers.get("allow") == "POST") is (answer.status == 405)


@pytest.mark.parametrize(("path", "count"), [(SNAPSHOT_PATH, 1), (CONTROL_PATH, 0)])
def test_snapshot_that_broke_off_is_counted(path: str, count: int) -> None:
    """A process killed in the middle of its push leaves a count, and gets no answer."""
    ingest = Ingest()

    assert ask(ingest.app, "POST", path) is None
    assert ingest.counts.results["malformed"] == count


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


@pytest.mark.parametrize("shown", ["", "Bearer guess"])
@pytest.mark.parametrize("path", [SNAPSHOT_PATH, CONTROL_PATH, DRY_RUN_PATH])
def test_tcp_needs_the_token(token_path: Path, path: str, shown: str) -> None:
    """With it a rank reports, and is controlled; over the Unix socket none is needed."""
    ingest = Ingest(token=TokenFile(token_path, FLAG))
    content = OFF if path == CONTROL_PATH else SENT
    assert ingest.push(SENT, authorization="Bearer s3cret").status == 200
    answer = ingest.send("POST", path, content, authorization=shown)

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.content["error"].endswith("RANKSKEW_TOKEN_FILE to a file with the same token.")
    assert ingest.counted() == {"accepted": 1, "unauthorized": 1}
    assert ingest.send("POST", path, content, authorization="Bearer s3cret").status == 200
    assert ingest.push(snapshot(job_id="unix").to_json(), USER).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cre",
        "Bearer s3crets",
        "Bearer é",
        "Basic s3cret",
        "s3cret",
    ],
)
def test_anything_but_the_right_token_is_refused(token_path: Path, header: str) -> None:
    """A missing, wrong, cut or differently wrapped token."""
    token = TokenFile(token_path, FLAG)
    assert not token.is_shown_in(header)
    assert token.is_shown_in("Bearer s3cret")
    assert token.is_shown_in("bearer  s3cret ")


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


UNUSABLE = [None, b"", b"two words", b"two\nlines", b"\xff", b"x" * 5_000]


@pytest.mark.parametrize("content", UNUSABLE)
def test_half_made_rotation_locks_nobody_out(
    token_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """While the file is missing or unusable the token before stays good, and that is said once.

    An exporter that was asked for a token does not start without one.
    """
    token = TokenFile(token_path, FLAG)
    token_path.unlink()
    if content is not None:
        token_path.write_bytes(content)

    for _ in range(3):
        assert token.is_shown_in("Bearer s3cret")
    (message,) = caplog.messages
    assert "the previous token stays valid" in message
    complaint = "No such file or directory" if content is None else "must hold one token"
    with pytest.raises(UsageError, match=rf"^{FLAG}.* {complaint}") as refusal:
        TokenFile(token_path, FLAG)
    assert "words" not in str(refusal.value) + message
    token_path.unlink(missing_ok=True)
    token_path.write_text("next")
    assert token.is_shown_in("Bearer next")


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


def test_rank_that_could_report_is_told_so() -> None:
    """With the exporter's version and its scrapers; the rank is neither kept nor counted."""
    scrapers = Scrapers(lambda: 0.0)
    scrapers.see("10.0.0.7", "Prometheus/2.53.0")
    ingest = Ingest(scrapers=scrapers)
    answer = try_out(ingest, SENT)

    assert answer.status == 200
    assert answer.content == {
        "version": __version__,
        "would_accept": True,
        "result": "accepted",
        "reason": None,
        "unknown_fields": 0,
        "scraped": [{"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 0.0}],
        "no_join": "",
    }
    assert (ingest.store.ranks(), ingest.counted()) == ([], {})


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


@pytest.mark.parametrize(
    ("content", "peer"),
    [
        *((content, USER) for content in (NEXT, SENT, b"\xff", b"[" * 1_000, b'{"job_id": 1}')),
        *(
            (snapshot(**changes).to_json(), USER)
            for changes in (
                {"rank": 9},
                {"job_id": "\x1b[2J"},
                {"started_timestamp_seconds": 1.0},
                {"job_id": "a third"},
            )
        ),
        (snapshot(job_id="another").to_json(), OTHER),
        *((NEXT, peer) for peer in (OTHER, None, IN_POD, Peer(0))),
    ],
)
def test_dry_run_says_what_the_push_would_be_told(content: bytes, peer: Peer | None) -> None:
    """It foretells result and sentence of the push that follows, and tells nothing else.

    Where a push would make another owner's rank give way, a dry run leaves it.
    """
    ingest = Ingest(RankLimits(jobs=2))
    ingest.push(SENT, USER)
    ingest.push(snapshot(job_id="second").to_json(), USER)
    before: Any = copy.deepcopy((ingest.store.ranks(), ingest.counts))
    tried = try_out(ingest, content, peer)
    assert (ingest.store.ranks(), ingest.counts) == before
    pushed = ingest.push(content, peer)
    counted = before[1].results
    (result,) = [name for name, count in ingest.counted().items() if count > counted[name]]

    assert tried.status == pushed.status
    assert tried.content["would_accept"] is (pushed.status == 200)
    assert tried.content["result"] == result
    assert tried.content["reason"] == pushed.content.get("error")


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
    assert try_out(ingest, SENT, USER).status == 200
    assert ingest.push(SENT, OTHER).status == 200
    ingest.clock.seconds += 60.0
    assert try_out(ingest, NEXT, OTHER).status == 200

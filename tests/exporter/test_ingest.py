"""The ingest answers every push, and every dry run, with the right status and one sentence.

A valid snapshot is stored unchanged; the refusal of an invalid one names the field.
"""

import copy
import dataclasses
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.errors import UsageError
from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.schema import RESULTS, Refused, limits, parse
from exporter.ingest.token_file import TokenFile
from exporter.ingest.values import LARGEST_COUNT
from exporter.listeners.peer import NAMESPACE_OF, Peer
from exporter.operator.levels import Orders
from exporter.operator.orders import CONTROL_PATH, Order
from exporter.ranks.limits import BEGINNINGS_A_MINUTE, RankLimits
from exporter.ranks.store import RankStore
from exporter.scrapers import Scrapers
from rank_probe.judge.verdict import Together
from rank_probe.version import __version__
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import DRY_RUN_PATH, RANK_INFO_LABELS, SNAPSHOT_PATH, Snapshot
from rank_probe.wire.stages import STAGES
from tests.exporter.asgi import Answer, ask
from tests.exporter.node import OTHER, USER, Clock
from tests.exporter.snapshots import CHANGE, DEFAULT, LATE, late, snapshot, verdict

FLAG = "--ingest.token-file"
MAX_BODY_BYTES = 2_000
OFF = Order("llama", "off").to_json()
SENT = snapshot().to_json()
NEXT = snapshot(sequence=2).to_json()
IN_POD = Peer(1000, "a-container")
BEARER = "Bearer s3cret"


class Ingest:
    """An ingest application with its store; *parts* are optional arguments of IngestApp."""

    def __init__(self, limits: RankLimits | None = None, **parts: Any) -> None:
        self.clock = Clock()
        self.store = RankStore(limits, self.clock)
        self.counts = IngestCounts()
        self.app = IngestApp(self.store, self.counts, Orders(self.store), MAX_BODY_BYTES, **parts)

    def send(
        self, method: str, path: str, content: bytes = b"", peer: Peer | None = None, **headers: str
    ) -> Answer:
        headers = {"content_type": "application/json"} | headers
        answer = ask(self.app, method, path, content, peer=peer, **headers)
        assert answer is not None
        return answer

    def push(self, content: bytes, peer: Peer | None = None, **headers: str) -> Answer:
        return self.send("POST", SNAPSHOT_PATH, content, peer, **headers)

    def try_out(self, content: bytes, peer: Peer | None = USER) -> Answer:
        return self.send("POST", DRY_RUN_PATH, content, peer)

    def counted(self) -> dict[str, int]:
        """Return how many pushes had each result."""
        return {result: count for result, count in self.counts.results.items() if count}


def test_snapshot_is_taken_and_a_repeated_one_is_no_error() -> None:
    """A probe may send the same state twice; the second push is ignored with a 200.

    Only a new state produces events, and is answered with the rank's own figures, for its peers.
    """
    seen: list[Snapshot] = []
    events = SimpleNamespace(see=seen.append)
    ingest = Ingest(events=events, told=lambda each: {"figures": {"data_seconds": each.steps / 8}})
    figures = {"figures": {"data_seconds": 12.5}}
    for content, said, results in (
        (SENT, figures, {"accepted": 1}),
        (SENT, {}, {"accepted": 1, "ignored": 1}),
        (NEXT, figures, {"accepted": 2, "ignored": 1}),
    ):
        answer = ingest.push(content)
        assert (answer.status, answer.content) == (200, said)
        assert ingest.counted() == results
    assert [held.snapshot for held in ingest.store.ranks()] == [snapshot(sequence=2)]
    assert [each.sequence for each in seen] == [1, 2]


def test_rank_without_a_judge_is_told_that_it_is_late() -> None:
    """After two minutes, the answer names the stage in which a rank lags the others of its node."""
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


PATHS = SNAPSHOT_PATH, CONTROL_PATH, DRY_RUN_PATH
EARLIER = snapshot(started_timestamp_seconds=1.0).to_json()
# The announced length is enough: the body need not arrive.
ANNOUNCED = {"content_length": str(MAX_BODY_BYTES + 1)}
# Any site can make a browser on the node call loopback; the Origin header names the site.
EVIL = {"origin": "https://evil.example"}


@pytest.mark.parametrize(
    ("path", "content", "peer", "headers", "status", "result"),
    [
        (SNAPSHOT_PATH, b"\xff", USER, {}, 400, "malformed"),
        (SNAPSHOT_PATH, b"not json", USER, {}, 400, "malformed"),
        (SNAPSHOT_PATH, snapshot(rank=9).to_json(), USER, {}, 422, "invalid"),
        (SNAPSHOT_PATH, snapshot(attempt=-1).to_json(), USER, {}, 422, "invalid"),
        (SNAPSHOT_PATH, EARLIER, USER, {}, 409, "superseded"),
        (SNAPSHOT_PATH, snapshot(rank=1).to_json(), USER, {}, 429, "no_room"),
        *((SNAPSHOT_PATH, NEXT, peer, {}, 403, "forbidden") for peer in (OTHER, IN_POD, None)),
        (CONTROL_PATH, b"{", USER, {}, 422, None),
        (CONTROL_PATH, Order("nobody", "off").to_json(), USER, {}, 404, None),
        *((CONTROL_PATH, OFF, peer, {}, 403, None) for peer in (OTHER, IN_POD, Peer(0), None)),
        *((path, NEXT, None, EVIL, 403, "forbidden") for path in PATHS),
        *((path, b"x" * (MAX_BODY_BYTES + 1), USER, {}, 413, "oversized") for path in PATHS),
        *((path, b"", USER, ANNOUNCED, 413, "oversized") for path in PATHS),
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
    """A refused request changes nothing: the rank stays, at its level."""
    ingest = Ingest(RankLimits(ranks=1))
    ingest.push(SENT, USER)
    answer = ingest.send("POST", path, content, peer, **headers)

    assert answer.status == status
    assert answer.content.keys() == {"error"}
    assert answer.content["error"].endswith(".")
    assert ingest.counted() == {"accepted": 1} | ({result: 1} if result else {})
    assert [held.snapshot for held in ingest.store.ranks()] == [snapshot()]
    assert ingest.push(NEXT, USER).content == {}


def test_nothing_is_shown() -> None:
    """The ingest listener accepts snapshots and orders, and exposes nothing about a job.

    A push that is cut off because its process was killed is counted, without an answer.
    """
    ingest = Ingest()
    for path, status in (("/metrics", 404), ("/docs", 404), *((path, 405) for path in PATHS)):
        answer = ingest.send("GET", path)
        assert answer.status == status
        assert "POST" in answer.content["error"]
    assert answer.headers["allow"] == "POST"

    assert ask(ingest.app, "POST", SNAPSHOT_PATH) is None
    assert ingest.counted() == {"malformed": 1}


def test_description_has_what_is_posted() -> None:
    """The OpenAPI description lists every field and status, for clients other than the probe."""
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


@pytest.fixture
def token_path(tmp_path: Path) -> Path:
    token_path = tmp_path / "token"
    token_path.write_text("s3cret\n")
    token_path.chmod(0o600)
    return token_path


WRONG = "", "Bearer", "Bearer s3cre", "Bearer s3crets", "Bearer é", "Basic s3cret", "s3cret"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        ("pipe", "it is not a regular file"),
        *((unusable, "must hold one token") for unusable in (b"", b"two words", b"x" * 5_000)),
    ],
)
def test_half_made_rotation_locks_nobody_out(
    token_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str | None, complaint: str
) -> None:
    """While the file is missing or unusable, the old token stays valid, and one warning is logged.

    A usable file then replaces the old token. With the flag set, the exporter does not start
    without a token. It warns if others can read or change the file, and never blocks on a pipe.
    """
    token = TokenFile(token_path, FLAG)
    assert [header for header in WRONG if token.is_shown_in(header)] == []
    token_path.unlink()
    if isinstance(content, bytes):
        token_path.write_bytes(content)
    elif content is not None:
        os.mkfifo(token_path)

    assert all(token.is_shown_in(header) for header in (BEARER, BEARER, "bearer  s3cret "))
    (message,) = caplog.messages
    assert "the previous token stays valid" in message
    with pytest.raises(UsageError, match=rf"^{FLAG}.* {complaint}") as refusal:
        TokenFile(token_path, FLAG)
    assert "words" not in str(refusal.value) + message
    token_path.unlink(missing_ok=True)
    token_path.write_text("next")
    assert (token.is_shown_in("Bearer next"), token.is_shown_in(BEARER)) == (True, False)
    for mode, warnings in ((0o640, 0), (0o660, 1), (0o604, 2)):
        token_path.chmod(mode)
        TokenFile(token_path, FLAG)
        assert caplog.text.count("chmod 0640 it") == warnings


def test_dry_run_says_who_scrapes_and_why_ranks_cannot_be_compared() -> None:
    """A dry run also reports the exporter's version; the rank is neither stored nor counted.

    Only ranks that push now matter, and only their user learns of them, also from outside a pod.
    """
    scrapers = Scrapers(lambda: 0.0)
    scrapers.see("10.0.0.7", "Prometheus/2.53.0")
    ingest = Ingest(scrapers=scrapers)
    answer = ingest.try_out(SENT)
    assert (answer.status, ingest.store.ranks(), ingest.counted()) == (200, [], {})
    assert answer.content == {
        **{"version": __version__, "would_accept": True, "result": "accepted", "reason": None},
        "scraped": [{"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 0.0}],
        **{"unknown_fields": 0, "no_join": ""},
    }

    ingest.push(snapshot(rank=1, no_join="file_store").to_json(), Peer(1000, "its pod"))
    ingest.push(snapshot(job_id="other", no_join="mpi_backend").to_json(), USER)
    asked = snapshot(rank=2).to_json()
    own, others = ingest.try_out(asked), ingest.try_out(asked, OTHER)
    ingest.clock.seconds += 10.0
    silent = ingest.try_out(asked)
    found = [answer.content["no_join"] for answer in (own, others, silent)]
    assert found == ["file_store", "", ""]


@pytest.mark.parametrize(
    ("content", "peer"),
    [
        *((content, USER) for content in (NEXT, SENT, EARLIER, b"\xff", b'{"job_id": 1}')),
        (snapshot(job_id="a third").to_json(), USER),
        (snapshot(job_id="another").to_json(), OTHER),
        (NEXT, OTHER),
    ],
)
def test_dry_run_says_what_the_push_would_be_told(content: bytes, peer: Peer | None) -> None:
    """A dry run predicts the status, result and message of the push, and changes nothing.

    Where a push would evict another owner's rank, a dry run leaves it in place.
    """
    ingest = Ingest(RankLimits(jobs=2))
    ingest.push(SENT, USER)
    ingest.push(snapshot(job_id="second").to_json(), USER)
    before: Any = copy.deepcopy((ingest.store.ranks(), ingest.counts))
    tried = ingest.try_out(content, peer)
    assert (ingest.store.ranks(), ingest.counts) == before
    pushed = ingest.push(content, peer)
    counted = before[1].results
    (result,) = [name for name, count in ingest.counted().items() if count > counted[name]]

    assert tried.status == pushed.status
    assert tried.content["would_accept"] is (pushed.status == 200)
    assert tried.content["result"] == result
    assert tried.content["reason"] == pushed.content.get("error")


def test_guessing_is_no_faster_than_with_pushes() -> None:
    """A user may dry-run as many ranks per minute as may start; other users are not limited by it.

    Dry runs do not use up the ranks that may start.
    """
    ingest = Ingest(RankLimits(ranks=1))
    guesses = [
        ingest.try_out(snapshot(job_id=f"guess-{n}").to_json(), Peer(1001, f"{NAMESPACE_OF}{n}"))
        for n in range(BEGINNINGS_A_MINUTE + 1)
    ]

    assert [guess.status for guess in guesses] == [200] * BEGINNINGS_A_MINUTE + [429]
    assert "ask again in a minute." in guesses[-1].content["error"]
    assert ingest.try_out(SENT, USER).status == 200
    assert ingest.push(SENT, OTHER).status == 200
    ingest.clock.seconds += 60.0
    assert ingest.try_out(NEXT, OTHER).status == 200


# ---- The schema of a snapshot --------------------------------------------------------------------

LINE = {"stage": "data", "place": "Corpus.__next__ (data/corpus.py:41)", "share": 0.71}
STATE = {"stage": "data", "state": "sleep", "share": 0.71, "place": "read (corpus.py:41)"}
# The fields of a snapshot that have no default.
MINIMAL = {
    field.name: getattr(DEFAULT, field.name)
    for field in dataclasses.fields(DEFAULT)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
}
PEERS = {"sm_clock_hertz": [1.9e9, 1.95e9, 1.98e9], "gpu_temperature_celsius": [-1.0, 0.0, 61.0]}
RANK_INFO = {"local_rank": "0", "clock": "cuda", "dp": "", "source": "torchrun"}


def body(**changes: Any) -> bytes:
    """Return the default snapshot as JSON with *changes*, valid or not."""
    return json.dumps(dataclasses.asdict(DEFAULT) | changes).encode()


def refusal(content: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(content)
    return caught.value


def travelled(**changes: Any) -> dict[str, Any]:
    """Return the default verdict with *changes* as JSON returns it, with lists for tuples."""
    said: dict[str, Any] = json.loads(json.dumps(verdict(**changes)))
    return said


SLOWER = dataclasses.replace(
    CHANGE, slower=5, slower_ranks=(0, 1), slower_spans=((0, 4),), peers=8, in_common="rack r12"
)
TOGETHER = Together("data", 3, 60.0, ((0, 1), (3, 3)), "node n1")


@pytest.mark.parametrize(
    "sent",
    [
        snapshot(
            job_id="x" * 128,
            peer_group="stufe-é 日本",
            level="detail",
            finished=True,
            rank_info=RANK_INFO,
            runtime_info={"torch": "2.13.0"},
            loader="Corpus.__getitem__ (corpus.py:30)",
            samples=1,
            padding_tokens=0,
            join_coverage=1.0,
            wait_caused_seconds={"data": 0.5},
            block_seconds={"data": 0.125, "sync": 0.0},
            verdict=travelled(changes=(SLOWER,), together=(TOGETHER,)),
            verdict_age_seconds=0.0,
            late_lines=[LINE | {"share": 1.0}] * 5,
            thread_states=[STATE | {"place": ""}] * 8,
            limitations=["A wait is not timed."],
            peer_figures={name: [1.0, 2.0, 3.0] for name in FIGURES},
        ),
        snapshot(stage_seconds={}, busy_seconds=0.0, steps=LARGEST_COUNT),
        snapshot(verdict=travelled(ranks={}, reason="warming_up", slowdown=None, late=())),
    ],
)
def test_what_the_probe_sends_arrives_unchanged(sent: Snapshot) -> None:
    assert parse(sent.to_json()) == (sent, 0)


def test_fields_that_are_not_sent_have_the_probes_defaults() -> None:
    """Fields that an older probe does not send have their defaults; empty fields are not sent.

    Without a field that every release sends, the snapshot is refused with its name.
    """
    assert parse(json.dumps(MINIMAL).encode()) == (Snapshot(**MINIMAL), 0)
    sent = json.loads(snapshot().to_json())
    assert not {"thread_states", "peer_figures", "loader"} & sent.keys()
    assert "late_lines" in sent
    for name in MINIMAL:
        rest = {each: value for each, value in MINIMAL.items() if each != name}
        answer = refusal(json.dumps(rest).encode())
        assert answer.result == "invalid"
        assert str(answer).startswith(f"Field {name} is missing; install the same release")


def test_new_field_of_the_probe_has_a_limit() -> None:
    """A new text or list field without a limit fails as soon as the schema is imported."""
    newer = dataclasses.make_dataclass("Newer", [("mood", str)])
    with pytest.raises(KeyError):
        limits(newer)
    assert limits(newer, mood=bool) == {"mood": bool}


OLDER_LATE = {name: each for name, each in dataclasses.asdict(LATE).items() if name != "at"}
OLDER = {name: each for name, each in verdict().items() if name != "suspect"}
OLDER["late"] = [OLDER_LATE]
GPU_7 = {"node": "gpu-7", "mood": "good"}
SCRIPT = GPU_7 | {"page": "javascript:alert(1)"}
NEWER_LATE = [dataclasses.asdict(LATE) | {"excuse": "rain"}]


@pytest.mark.parametrize(
    ("newer", "taken", "unknown"),
    [
        ({"mood": "good", "moods": [{}], "joins": None}, {}, 3),
        ({"verdict": verdict() | {"mood": 1, "late": NEWER_LATE}}, {"verdict": travelled()}, 0),
        ({"late_lines": [LINE | {"source": "x = 1"}]}, {"late_lines": [LINE]}, 0),
        ({"thread_states": [STATE | {"excuse": "rain"}]}, {"thread_states": [STATE]}, 0),
        ({"peer_figures": PEERS | {"mood": "good"}}, {"peer_figures": PEERS}, 1),
        # From an older probe, and with a page that is not a web address.
        ({"verdict": OLDER}, {"verdict": travelled()}, 0),
        (
            {"verdict": verdict(late=[late(at=SCRIPT)], suspect=SCRIPT | {"rank": "6"})},
            {"verdict": travelled(late=[late(at=GPU_7)], suspect=GPU_7 | {"rank": "6"})},
            0,
        ),
    ],
)
def test_probe_of_another_release_is_not_refused(
    newer: dict[str, Any], taken: dict[str, Any], unknown: int
) -> None:
    """Unknown fields and bad links are dropped, counted at the top; missing ones are empty."""
    assert parse(body(**newer)) == (snapshot(**taken), unknown)


def said(raw: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a verdict field with *changes* and with *raw*, which our judge never sends."""
    return {"verdict": verdict(**changes) | (raw or {})}


NEGATIVE = "is wrong: input should be greater than or equal to"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 2}, "This exporter reads schema 1 only; install the same release"),
        ({"rank": 4}, "The snapshot says rank 4, which is outside a world of 4; check RANK"),
        ({"rank": -1}, f"Field rank {NEGATIVE} 0"),
        ({"world_size": 0}, f"Field world_size {NEGATIVE} 1"),
        ({"job_id": ""}, "Field job_id is wrong: string should have at least 1 character"),
        ({"job_id": "x" * 129}, "Field job_id is wrong: string should have at most 128 character"),
        ({"job_id": "a\u202eb"}, "Field job_id has characters that cannot be printed"),
        ({"stage": "lunch"}, "Field stage is not a stage; use one of optimizer, other"),
        ({"stage_seconds": {"lunch": 1}}, "Field stage_seconds.lunch is not a stage"),
        (
            {"stage_seconds": {"data": math.nan}},
            "Field stage_seconds.data is wrong: input should be a finite number",
        ),
        ({"steps": 10**400}, "Field steps is wrong: input should be less than or equal to"),
        ({"finished": 1}, "Field finished is wrong: input should be a valid boolean"),
        ({"late_lines": [LINE] * 6}, "Field late_lines is wrong: list should have at most 5"),
        ({"late_lines": [{}]}, "Field late_lines.0.stage is missing; install the same release"),
        (said(late=[late(kind="lazy")]), "Field verdict.late.0.kind is not a way to be late"),
        (said(suspect={"line": "x" * 1025}), "Field verdict.suspect.line is wrong: string should"),
        (said(suspect={f"{n}": "" for n in range(33)}), "Field verdict.suspect is wrong: dict"),
        (said({"ranks": {f"pp{n}": 1 for n in range(65)}}), "Field verdict.ranks is wrong: dict"),
        ({"verdict": {"step": 1}}, "Field verdict.ranks is missing; install the same release"),
    ],
)
def test_invalid_field_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    """A wrong value is answered with the field, what is wrong with it and what would be right."""
    answer = refusal(body(**changes))

    assert answer.result == "invalid"
    assert str(answer).startswith(sentence)


def test_body_that_is_no_snapshot_is_refused() -> None:
    """The answer is short and printable, whatever the client sent."""
    for content, result, sentence in (
        (b"\xff\xfe", "malformed", "The body is not UTF-8; send the snapshot as UTF-8 JSON."),
        (b"[" * 60_000, "malformed", "The body is not JSON; send one JSON object."),
        (body(job_id="\ud800"), "malformed", "The body is not JSON; send one JSON object."),
        (b"[]", "invalid", "The snapshot must be a JSON object, sent as application/json."),
    ):
        answer = refusal(content)
        assert (answer.result, str(answer)) == (result, sentence)

    hostile = str(refusal(body(stage_seconds={"\x1b[31m\n" * 100: 1})))
    assert hostile.isprintable()
    assert len(hostile) < 200

"""Orders reach their ranks and the GPUs, from the command to the socket, or are refused."""

import http.client
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.listeners.peer import Peer
from exporter.operator import client
from exporter.operator.levels import MayControl, Orders, everybodys, own
from exporter.operator.orders import CONTROL_PATH, GPUS_PATH, Order
from exporter.ranks.store import Forbidden
from exporter.settings import Settings
from rank_probe.wire.snapshot import DRY_RUN_PATH, SNAPSHOT_PATH
from rankskew.__main__ import main
from tests.exporter.node import OTHER, USER, Clock, PushingNode
from tests.exporter.running import (
    RunningExporter,
    UnixConnection,
    counted,
    exchange,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot
from tests.rank_probe.sink import saying
from tests.rankskew.test_cli import EVERY, without

IN_CONTAINER = Peer(1_000, "a-container")


class Node(PushingNode):
    """One with ranks 0 and 1 of the user's job, and orders for them."""

    def __init__(self) -> None:
        super().__init__()
        self.orders = Orders(self.store)
        for rank in (0, 1):
            self.push(USER, rank=rank)

    def push(self, peer: Peer | None = None, /, **changes: object) -> bool:
        """Take a snapshot in as the ingest does."""
        self.orders.forget_ended()
        return super().push(peer, **changes)

    def give(self, order: Order, may_control: MayControl | None = None) -> int:
        return self.orders.give(order, may_control or own(USER))

    def level(self, peer: Peer | None = USER, **changes: object) -> str | None:
        return self.orders.level_for(snapshot(**changes), peer)


def test_last_order_counts() -> None:
    """A job's order covers all its ranks, later ones too, until a later order for one of them.

    A rank that restarts after a crash keeps its level. Orders are forgotten once the job has ended,
    or has been silent for too long.
    """
    node = Node()
    assert node.give(Order("llama", "detail", 1)) == 1
    assert [node.level(rank=rank) for rank in (0, 1, 2)] == [None, "detail", None]
    assert node.give(Order("llama", "off")) == 2
    node.give(Order("llama", "detail", 1))
    assert [node.level(rank=rank) for rank in (0, 1, 2)] == ["off", "detail", "off"]

    node.give(Order("llama", "stages"))
    assert [node.level(rank=rank) for rank in (0, 1, 2)] == ["stages"] * 3
    assert node.level(job_id="other") is None
    node.push(USER, rank=0, attempt=1)
    assert node.level(rank=0, attempt=1) == "stages"
    for rank in range(2, 5):  # Of a rank that has ended nothing is kept, though its job goes on.
        node.push(USER, rank=rank, world_size=64)
        node.give(Order("llama", "off", rank))
        node.push(USER, rank=rank, world_size=64, finished=True, sequence=9)
    assert len(node.orders._given) <= 2
    node.clock.seconds += 3_601
    node.push(USER, attempt=2)
    assert node.level(attempt=2) is None


def test_rank_is_controlled_by_its_user_and_the_operator() -> None:
    """A container controls only its own part of a job; its user on the node controls that too.

    The operator of the node can turn any probe off. Over TCP, clients cannot be identified: each of
    them controls every rank that reports over TCP.
    """
    node = Node()
    node.push(IN_CONTAINER, rank=2)
    node.push(None, job_id="tcp")
    for job_id, who, ranks in (
        ("llama", own(IN_CONTAINER), 1),
        ("llama", own(USER), 3),
        ("tcp", own(None), 1),
        ("llama", everybodys, 3),
        ("tcp", everybodys, 1),
    ):
        assert node.give(Order(job_id, "off"), who) == ranks
    for who in (own(Peer(1_000, "another")), own(OTHER), own(None)):
        with pytest.raises(Forbidden, match="Job 'llama' belongs to another user or container"):
            node.give(Order("llama", "detail"), who)
    assert node.level(IN_CONTAINER, rank=2) == node.level(None, job_id="tcp") == "off"


Said = Callable[..., str]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("s3cret")
    return token


@pytest.fixture(scope="module")
def exporter(token: Path) -> Iterator[RunningExporter]:
    """An exporter that listens on TCP too, for those who know the token."""
    flags = "--ingest.listen-address=0.0.0.0:0", f"--ingest.token-file={token}"
    with running_exporter(token.with_name("e.sock"), *flags) as running:
        yield running


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command; returns what it prints, or the one line with which it fails."""

    def said(*arguments: str, status: int = 0) -> str:
        assert main(list(arguments)) == status
        output = capsys.readouterr()
        if status == 0:
            return output.out
        assert (output.out, output.err.count("\n")) == ("", 1)
        return output.err

    return said


def push_rank(exporter: RunningExporter, job_id: str, **changes: int) -> tuple[int, dict[str, str]]:
    status, answer = exporter.push(snapshot(job_id=job_id, **changes).to_json())
    return status, answer


def post(exporter: RunningExporter, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
    """Return status and answer of the operator's socket."""
    connection = UnixConnection(exporter.operator_path)
    status, _, answer = exchange(connection, "POST", path, body, {"Content-Type": content_type})
    return status, json.loads(answer)


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (CONTROL_PATH, b"{", "The body is not JSON"),
        (CONTROL_PATH, b"[" * 60_000, "There was an error parsing the body"),
        (CONTROL_PATH, b'{"job_id":"a","level":"off","colour":1}', "Field colour is wrong"),
        (CONTROL_PATH, b'{"job_id":"a","level":["off"]}', "Field level is wrong: input should"),
        (GPUS_PATH, b'{"action":"reset"}', "'status', 'release' or 'resume'"),
        # Whoever forgets to resume loses a day at most.
        *(
            (GPUS_PATH, b'{"action":"release","seconds":%b}' % each, "above 0 and at most 86400")
            for each in (b"0", b"86401", b"NaN")
        ),
    ],
)
def test_what_is_no_order_is_one_sentence(
    exporter: RunningExporter, path: str, body: bytes, sentence: str
) -> None:
    """Whatever is posted changes nothing, and the answer names what is wrong."""
    status, answer = post(exporter, path, body, "application/json")
    assert status in (400, 422)
    assert sentence in answer["error"]
    assert answer["error"].endswith(".")
    # curl --data sends a form unless it is told otherwise.
    order, form = Order("llama", "off").to_json(), "application/x-www-form-urlencoded"
    refusal = {"error": "The body must be a JSON object, sent as application/json."}
    assert post(exporter, path, order, form) == (422, refusal)
    assert "\nrankskew_nvml_released 0.0" in exporter.metrics()


def test_order_reaches_the_rank(
    exporter: RunningExporter, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank hears of the operator's level at its next push; the command finds what it finds."""
    for rank in (0, 1):
        push_rank(exporter, "controlled", rank=rank)
    monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{exporter.socket_path}")

    assert said("control", "controlled", "off") == (
        "2 ranks of job 'controlled' on this node: level off within about a second\n"
    )
    one = said("control", "controlled", "detail", "--rank", "1")
    assert one.startswith("1 rank of job 'controlled'")
    answers = [push_rank(exporter, "controlled", rank=rank, sequence=2) for rank in (0, 1)]
    assert answers == [(200, {"level": "off"}), (200, {"level": "detail"})]
    document = {"schema": "control/1", "job_id": "controlled", "level": "off", "rank": None}
    assert json.loads(said("control", "controlled", "off", "--json")) == document | {"ranks": 2}
    # The command needs no package of an extra.
    ended = without(EVERY, "control", "controlled", "off")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_mistake_is_one_line(exporter: RunningExporter, said: Said, tmp_path: Path) -> None:
    """An unknown job, rank or time, a wrong endpoint, another service, none: a sentence each."""
    push_rank(exporter, "mistaken")
    ingest = f"--exporter=unix:{exporter.socket_path}"
    operator = f"--exporter=unix:{exporter.operator_path}"
    web = f"--exporter=http://127.0.0.1:{exporter.port}"
    absent = f"--exporter=unix:{tmp_path}/absent"
    for sentence, arguments in (
        ("No rank of job 'misteaken' runs on this node", ["misteaken", "off", ingest]),
        ("has no rank 9", ["mistaken", "off", "--rank=9", ingest]),
        ("/absent: No such file or directory;", ["mistaken", "off", absent]),
        ("it must be unix:/path", ["mistaken", "off", "--exporter=host"]),
        ("answers 404: it takes no orders", ["m", "off", web]),
        ("'soon' is not a duration", ["--release-gpus", "--for", "soon", operator]),
        ("at most 86400", ["--release-gpus", "--for", "25h", operator]),
        ("no exporter answers at", ["--release-gpus", absent]),
        ("Not Found: this serves POST to /v1/snapshots", ["--resume-gpus", ingest]),
    ):
        assert sentence in said("control", *arguments, status=2)
    for answer, sentence in (
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer is not HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "does not answer as an exporter does"),
    ):
        with saying(answer) as where:
            assert sentence in said("control", "llama", "off", f"--exporter={where}", status=2)


def test_token_guards_the_tcp_listener(
    exporter: RunningExporter, token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token TCP may listen everywhere, and the token never appears in a log."""
    body = snapshot(job_id="tcp").to_json()
    port = exporter.tcp_port()
    order = ["control", "tcp", "off", f"--exporter=http://127.0.0.1:{port}"]
    for path in (SNAPSHOT_PATH, DRY_RUN_PATH, CONTROL_PATH):
        for headers in ({}, {"Authorization": "Bearer guess"}):
            client = http.client.HTTPConnection("127.0.0.1", port)
            status, answered, said_why = exchange(client, "POST", path, body, headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
            assert b"RANKSKEW_TOKEN_FILE to a file with the same token." in said_why
    assert exporter.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 200
    assert "wants the token" in said(*order, status=2)
    monkeypatch.setenv("RANKSKEW_TOKEN_FILE", str(token))
    assert "level off" in said(*order)
    token.write_text("rotated")
    assert exporter.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 401
    # Six are of the loop; then the order, and the token of before.
    assert counted(exporter.metrics(), "unauthorized") == 8
    assert push_rank(exporter, "unix") == (200, {})
    log = "\n".join(exporter.log)
    assert [word in log for word in ("s3cret", "rotated", "level off")] == [False, False, True]


def test_order_goes_where_this_user_may_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root orders as the operator; any other user where their own ranks push."""
    operator, ranks = Settings().operator_socket, "unix:/ranks/push/here.sock"
    monkeypatch.setenv("RANKSKEW_EXPORTER", ranks)
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) == (operator, os.W_OK))
    assert client.control_endpoint() == f"unix:{operator}"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert client.control_endpoint() == ranks


def test_gpus_are_released_and_resumed(exporter: RunningExporter, said: Said) -> None:
    """When release returns the worker has ended; resume brings it back."""
    where = f"--exporter=unix:{exporter.operator_path}"
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())

    assert said("control", "--release-gpus", "--for", "30m", where) == (
        "the exporter has closed the GPUs for 30m: reset or reconfigure them,"
        " then run rankskew control --resume-gpus\n"
    )
    page = exporter.metrics()
    assert "\nrankskew_nvml_released 1.0" in page
    assert "\nrankskew_nvml_worker_up 0.0" in page
    assert "\nrankskew_gpus_visible " not in page
    assert exporter.get("/-/ready")[0] == 200

    resumed = "the exporter reads the GPUs again within seconds\n"
    assert said("control", "--resume-gpus", where) == resumed
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())
    assert "\nrankskew_nvml_released 0.0" in exporter.metrics()
    assert "GPUs released for 1800 s" in "\n".join(exporter.log)
    assert "for 10m:" in said("control", "--release-gpus", where)
    wait_until(lambda: "GPUs released for 600 s" in "\n".join(exporter.log))
    resumed = said("control", "--resume-gpus", "--json", where)
    assert json.loads(resumed) == {"schema": "control/1", "gpus": "resume"}


def test_long_release_says_once_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails if the worker does not end: a GPU that is open must not be reset."""
    clock = Clock()
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    began = clock.seconds
    monkeypatch.setattr(client, "post", lambda *_: (200, {"released": clock.seconds > began + 2}))
    assert main(["control", "--release-gpus", "--exporter=unix:/x"]) == 0
    waiting = "rankskew: waiting for the exporter to close the GPUs, for up to 10 s\n"
    assert capsys.readouterr().err == waiting

    monkeypatch.setattr(client, "post", lambda *_: (200, {"released": False}))
    assert main(["control", "--release-gpus", "--exporter=unix:/x"]) == 2
    assert "the process that reads the GPUs does not end" in capsys.readouterr().err

"""Tests of the pusher, against a real socket."""

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rank_probe.guest.guard import failures
from rank_probe.report import push
from rank_probe.report.push import TIMEOUT_SECONDS, Pusher, open_connection
from rank_probe.wire.snapshot import Snapshot
from tests.rank_probe.sink import PATIENCE_SECONDS, Sink, listening, listening_on_loopback

ATTEMPTS = 3  # of what is quick: other loads hold one up now and then


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push waits for its answer however busy the machine is."""
    monkeypatch.setattr(push, "TIMEOUT_SECONDS", PATIENCE_SECONDS)


def snapshot(**changes: object) -> Snapshot:
    """Return a snapshot of a rank that has done nothing yet."""
    values: dict[str, object] = {
        "job_id": "j",
        "peer_group": "all",
        "rank": 0,
        "world_size": 1,
        "attempt": 0,
        "pid": 1,
        "started_timestamp_seconds": 1.0,
        "sequence": 1,
        "heartbeat_timestamp_seconds": 2.0,
        "steps": 0,
        "stage_seconds": {},
        "busy_seconds": 0.0,
        "busy_seconds_squared": 0.0,
        "stage": "other",
        "stage_elapsed_seconds": 0.0,
    }
    return Snapshot(**(values | changes))  # type: ignore[arg-type]  # built by name


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """Return whether *condition* came true within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long *action* takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_exporter_absent_costs_nothing_but_a_count(tmp_path: Path) -> None:
    """Without an exporter pushes fail at once and are counted."""
    pusher = Pusher(f"unix:{tmp_path}/absent.sock", snapshot)

    assert min(seconds_of(pusher.push) for _ in range(ATTEMPTS)) < 0.1
    assert pusher.failed_pushes == ATTEMPTS


def test_snapshots_arrive_again_and_again(tmp_path: Path) -> None:
    """The thread keeps pushing over one connection."""
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot, interval_seconds=0.02)
        pusher.start()
        assert wait_until(lambda: len(sink.snapshots) >= 3)
        pusher.stop()

    assert sink.snapshots[0]["job_id"] == "j"
    assert pusher.failed_pushes == 0


def test_users_random_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """The pause between two pushes is not drawn from the generator that training draws from."""
    before = random.getstate()
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot, interval_seconds=0.02)
        pusher.start()
        assert wait_until(lambda: len(sink.snapshots) >= 2)
        pusher.stop()

    assert random.getstate() == before


def test_exporter_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """A restarted exporter hears the rank without any help."""
    path = tmp_path / "s"
    pusher = Pusher(f"unix:{path}", snapshot, interval_seconds=0.02)
    with listening(path) as first:
        pusher.start()
        assert wait_until(lambda: bool(first.snapshots))
    assert wait_until(lambda: pusher.failed_pushes > 0)
    with listening(path) as second:
        assert wait_until(lambda: bool(second.snapshots))
        pusher.stop()


def test_stop_pushes_one_last_time(tmp_path: Path) -> None:
    """The final state is said even between two beats."""
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(f"unix:{tmp_path}/s", lambda: snapshot(finished=True), interval_seconds=60)
        pusher.start()
        pusher.stop()

        assert [s["finished"] for s in sink.snapshots] == [True]


def test_refused_snapshot_is_counted_and_the_reason_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exporter that says no is heard: once in the log, every time in the count."""
    with listening(tmp_path / "s") as sink, caplog.at_level(logging.WARNING, "rank_probe"):
        sink.status = 422
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot)
        pusher.push()
        pusher.push()
        pusher.stop()

    assert pusher.failed_pushes >= 2
    assert len(caplog.records) == 1
    assert "422" in caplog.text


def test_exporter_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push to a stuck exporter ends within its short timeout."""
    monkeypatch.setattr(push, "TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "s"))
        stuck.listen()
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot)

        assert any(seconds_of(pusher.push) < 2 for _ in range(ATTEMPTS))
        assert pusher.failed_pushes > 0


def test_nothing_to_say_is_not_pushed(tmp_path: Path) -> None:
    """While the rank is unknown no snapshot leaves, and that is no failure."""
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(f"unix:{tmp_path}/s", lambda: None)
        pusher.push()

        assert sink.snapshots == []
        assert pusher.failed_pushes == 0


@pytest.mark.parametrize("endpoint", ["", "exporter.sock", "unix:relative", "http://host", "x:1"])
def test_wrong_endpoint_says_what_it_must_be(endpoint: str) -> None:
    """The error shows what was given and what is accepted."""
    with pytest.raises(ValueError, match="it must be unix:/path"):
        open_connection(endpoint)


def test_tcp_endpoint_is_understood() -> None:
    """A container without the socket reaches the exporter over loopback."""
    connection = open_connection("http://127.0.0.1:9918")

    assert (connection.host, connection.port) == ("127.0.0.1", 9918)


def answers_of(sink: Sink, pushes: int) -> list[dict[str, object]]:
    """Return what a pusher hears from *sink* in as many *pushes*."""
    heard: list[dict[str, object]] = []
    pusher = Pusher(sink.endpoint, snapshot, on_answer=heard.append)
    for _ in range(pushes):
        pusher.push()
    pusher.stop()
    return heard[:pushes]


@pytest.mark.parametrize(
    ("answer", "status", "heard"),
    [
        (b'{"level":"off"}', 200, {"level": "off"}),
        (b"{}", 200, {}),
        (b"", 200, {}),
        (b"[1]", 200, {}),
        (b"\xff", 200, {}),
        (b"[" * 60_000, 200, {}),
        (b'{"level":"off"}', 422, {}),
    ],
)
def test_each_answer_is_heard(
    tmp_path: Path, answer: bytes, status: int, heard: dict[str, object]
) -> None:
    """After each push the exporter's JSON object is passed on, {} when there is none."""
    with listening(tmp_path / "s") as sink:
        sink.answer, sink.status = answer, status

        assert answers_of(sink, 2) == [heard, heard]


def test_no_answer_is_heard_as_nothing(tmp_path: Path) -> None:
    """Without an exporter, or with nothing to say, the callback still comes after each turn."""
    heard: list[dict[str, object]] = []
    for say in (snapshot, lambda: None):
        pusher = Pusher(f"unix:{tmp_path}/absent.sock", say, on_answer=heard.append)
        pusher.push()

    assert heard == [{}, {}]


def test_broken_callbacks_are_no_failed_push(tmp_path: Path) -> None:
    """A snapshot or a callback that raises is the probe's failure: counted, never raised."""
    before = failures.count

    def broken(*_: object) -> None:
        raise RuntimeError

    with listening(tmp_path / "s") as sink:
        heard: list[dict[str, object]] = []
        Pusher(sink.endpoint, broken, on_answer=heard.append).push()
        pusher = Pusher(sink.endpoint, snapshot, on_answer=broken)
        pusher.push()
        pusher.stop()

    assert heard == [{}]
    assert pusher.failed_pushes == 0
    assert failures.count == before + 3


def served(*answers: bytes) -> Iterator[str]:
    """Yield an endpoint that gives *answers* on one connection, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.recv(65536)
                    with suppress(OSError):  # The pusher may have heard enough.
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 two\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    ],
)
def test_what_is_no_exporter_is_a_failed_push(answer: bytes) -> None:
    """Whatever listens there, a push ends, and what cannot be read counts as not delivered."""
    for endpoint in served(answer):
        pusher = Pusher(endpoint, snapshot)
        pusher.push()

    assert pusher.failed_pushes == 1


def test_answer_without_an_end_is_not_held(caplog: pytest.LogCaptureFixture) -> None:
    """What never ends is given up at a bound, and never fills the trainer's memory."""
    for endpoint in served(b"x" * 200_000):
        pusher = Pusher(endpoint, snapshot)
        with caplog.at_level(logging.WARNING, "rank_probe"):
            pusher.push()

    assert pusher.failed_pushes == 1
    assert "does not end" in caplog.text


def test_answer_may_come_in_pieces_and_end_the_connection() -> None:
    """An answer is read to its length, and a connection that it ends is opened anew."""
    heard: list[dict[str, object]] = []
    for endpoint in served(b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\nConnection: close\r\n\r\n{"):
        pusher = Pusher(endpoint, snapshot, on_answer=heard.append)
        pusher.push()
    assert (heard, pusher.failed_pushes) == ([{}], 1)  # cut off after its first byte

    for endpoint in served(
        b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\nConnection: close\r\n\r\n{"level":"off"}rest'
    ):
        pusher = Pusher(endpoint, snapshot, on_answer=heard.append)
        pusher.push()
    assert (heard[1:], pusher.failed_pushes) == ([{"level": "off"}], 0)


def test_token_is_shown_over_tcp(tmp_path: Path) -> None:
    """The content of RANKSKEW_TOKEN_FILE is the bearer token of each push."""
    (tmp_path / "token").write_text(" s3cret\n")
    with listening_on_loopback() as sink:
        sink.token = "s3cret"
        pusher = Pusher(sink.endpoint, snapshot, token_file=str(tmp_path / "token"))
        pusher.push()
        pusher.stop()

    assert sink.authorizations == ["Bearer s3cret", "Bearer s3cret"]
    assert pusher.failed_pushes == 0


def test_token_stays_out_of_the_unix_socket(tmp_path: Path) -> None:
    """The socket needs no token, so whoever listens there does not get to see it."""
    (tmp_path / "token").write_text("s3cret")
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(sink.endpoint, snapshot, token_file=str(tmp_path / "token"))
        pusher.push()
        pusher.stop()

    assert set(sink.authorizations) == {None}


def test_changed_token_is_read_when_the_old_one_is_refused(tmp_path: Path) -> None:
    """A rotation costs no push: a 401 sends the pusher back to the file."""
    token = tmp_path / "token"
    token.write_text("old")
    with listening_on_loopback() as sink:
        sink.token = "old"
        pusher = Pusher(sink.endpoint, snapshot, token_file=str(token))
        pusher.push()
        token.write_text("new")
        sink.token = "new"
        pusher.push()
        assert (len(sink.snapshots), pusher.failed_pushes) == (2, 0)
        assert sink.authorizations == ["Bearer old", "Bearer old", "Bearer new"]
        sink.token = "newer"
        pusher.push()
        assert (len(sink.snapshots), pusher.failed_pushes) == (2, 1)
        assert len(sink.authorizations) == 4  # the file has nothing new: no second try
        pusher.stop()


@pytest.mark.parametrize("content", [None, b"s3cret\nx", b"s3cret x", b"s3cret\xff", "sécret"])
def test_token_is_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str | None
) -> None:
    """A file that is missing or holds no token is said once, without a word of what it holds."""
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content if isinstance(content, bytes) else content.encode())
    with listening_on_loopback() as sink, caplog.at_level(logging.DEBUG):
        sink.token = "right"
        pusher = Pusher(sink.endpoint, snapshot, token_file=str(token))
        pusher.push()
        pusher.push()
        pusher.stop()

    assert set(sink.authorizations) == {None}
    assert pusher.failed_pushes == 3
    assert len(caplog.records) == 2
    assert f"RANKSKEW_TOKEN_FILE={token}" in caplog.records[0].getMessage()
    assert "cret" not in caplog.text.replace(str(tmp_path), "")

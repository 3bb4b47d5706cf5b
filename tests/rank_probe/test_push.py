"""Tests of the pusher against a real socket, of an endpoint, and of the level in the answer."""

import logging
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.report import push
from rank_probe.report.push import Control, Pusher
from rank_probe.wire.snapshot import LEVELS
from tests.exporter.running import wait_until
from tests.exporter.snapshots import snapshot
from tests.rank_probe.sink import (
    PATIENCE_SECONDS,
    SILENCE,
    listening,
    listening_on_loopback,
    saying,
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push waits for its answer however busy the machine is."""
    monkeypatch.setattr(push, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(push, "_TIMEOUT", struct.pack("ll", int(PATIENCE_SECONDS), 0))


def pushed(endpoint: str, pushes: int = 1, **options: Any) -> Pusher:
    """Return a pusher that has pushed so often, and has ended."""
    pusher = Pusher(endpoint, snapshot, **options)
    for _ in range(pushes):
        pusher.push()
    pusher._connection.close()
    return pusher


def test_rank_is_heard_again_and_again(tmp_path: Path) -> None:
    """A rank keeps pushing, also to an exporter that restarts, and once more at its own end.

    The thread's pauses are not drawn from the user's generator.
    """
    before = random.getstate()
    pusher = Pusher(f"unix:{tmp_path}/s", snapshot, interval_seconds=0.02)
    with listening(tmp_path / "s") as first:
        pusher.start()
        wait_until(lambda: len(first.snapshots) >= 3)
        assert pusher.failed_pushes == 0
    wait_until(lambda: pusher.failed_pushes > 0)
    with listening(tmp_path / "s") as second:
        wait_until(lambda: bool(second.snapshots))
        pusher.stop()
    with listening(tmp_path / "s") as last:
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot, interval_seconds=60)
        pusher.start()
        pusher.stop()

    assert first.snapshots[0]["job_id"] == snapshot().job_id
    assert len(last.snapshots) == 1
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("answer", "status", "heard"),
    [
        (b'{"level":"off"}', 200, {"level": "off"}),
        *((answer, 200, {}) for answer in (b"", b"[1]", b"\xff", b"[" * 60_000)),
        (b'{"level":"off"}', 422, {}),
    ],
)
def test_each_answer_is_heard(
    tmp_path: Path,
    answer: bytes,
    status: int,
    heard: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The exporter's JSON object is passed on, {} when there is none; a refusal is logged once."""
    all_heard: list[dict[str, object]] = []
    with listening(tmp_path / "s") as sink:
        sink.answer, sink.status = answer, status
        pusher = pushed(sink.endpoint, 2, on_answer=all_heard.append)

    assert all_heard == [heard, heard]
    assert pusher.failed_pushes == (2 if status == 422 else 0)
    assert caplog.text.count("422") == (status == 422)


def test_what_is_the_probes_own_is_no_failed_push(tmp_path: Path) -> None:
    """A snapshot or a callback that raises is counted, never raised; the callback still comes.

    While the rank is unknown no snapshot leaves.
    """

    def broken(*_: object) -> None:
        raise RuntimeError

    heard: list[dict[str, object]] = []
    with listening(tmp_path / "s") as sink:
        for says in (broken, lambda: None):
            pusher = Pusher(sink.endpoint, says, on_answer=heard.append)
            pusher.push()
            assert pusher.failed_pushes == 0
        assert pushed(sink.endpoint, 2, on_answer=broken).failed_pushes == 0
    assert pushed(f"unix:{tmp_path}/s", on_answer=heard.append).failed_pushes == 1

    assert len(sink.snapshots) == 2
    assert heard == [{}] * 3
    assert failures.count == 3


CLOSING = b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not an exporter"),
        (b"HTTP/1.1 two\r\nContent-Length: 0\r\n\r\n", "not an exporter"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "not an exporter"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not an exporter"),
        (CLOSING + b"{", "closed the connection"),
        (b"x" * 200_000, "does not end"),  # It never fills the trainer's memory.
        (SILENCE, "timed out"),
    ],
)
def test_what_is_no_exporter_is_a_failed_push(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever listens there, a push ends, and what cannot be read counts as not delivered."""
    if answer is SILENCE:
        monkeypatch.setattr(push, "_TIMEOUT", struct.pack("ll", 0, 50_000))
    with saying(answer) as endpoint, caplog.at_level(logging.WARNING, "rank_probe"):
        assert pushed(endpoint).failed_pushes == 1

    assert why in caplog.text


def test_answer_is_read_to_its_length_and_may_end_the_connection() -> None:
    """What follows is no part of it, and the next push opens another connection."""
    heard: list[dict[str, object]] = []
    with saying(CLOSING + b'{"level":"off"}rest') as endpoint:
        pusher = Pusher(endpoint, snapshot, on_answer=heard.append)
        pusher.push()

    assert (heard, pusher.failed_pushes) == ([{"level": "off"}], 0)
    assert pusher._connection.sock is None


def test_changed_token_is_read_when_the_old_one_is_refused(tmp_path: Path) -> None:
    """A rotation costs no push: a 401 sends the pusher back to the file.

    Whoever listens on the Unix socket, which needs no token, does not get to see it.
    """
    token = tmp_path / "token"
    token.write_text(" old\n")
    with listening(tmp_path / "s") as unix:
        assert pushed(unix.endpoint, token_file=str(token)).failed_pushes == 0
    assert unix.authorizations == [None]
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


@pytest.mark.parametrize("content", [None, "a pipe", b"s3cret x", b"s3cret\xff", "sécret".encode()])
def test_token_is_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str | None
) -> None:
    """A file that is missing or holds no token is said once, without a word of what it holds.

    A pipe that nobody writes to holds nothing up.
    """
    token = tmp_path / "token"
    if isinstance(content, bytes):
        token.write_bytes(content)
    elif content is not None:
        os.mkfifo(token)
    with listening_on_loopback() as sink, caplog.at_level(logging.DEBUG):
        sink.token = "right"
        assert pushed(sink.endpoint, 2, token_file=str(token)).failed_pushes == 2

    assert set(sink.authorizations) == {None}
    assert len(caplog.records) == 2
    assert f"RANKSKEW_TOKEN_FILE={token}" in caplog.records[0].getMessage()
    assert "cret" not in caplog.text.replace(str(tmp_path), "")


def test_answer_sets_the_level_until_another_does(caplog: pytest.LogCaptureFixture) -> None:
    """A rank that was turned off does not wake up because its exporter restarts.

    A newer exporter may ask for what this probe does not know: logged once, then ignored.
    """
    control = Control()
    assert control.level({}) == "stages"
    for level in LEVELS:
        for answer in ({"level": level}, {}, {"level": "loud"}, {"level": 1}, {"level": ["off"]}):
            assert control.level(answer) == level

    assert len(caplog.records) == 1

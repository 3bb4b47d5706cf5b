"""Tests of the pusher, against a real socket."""

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rank_probe.push import Pusher, open_connection
from rank_probe.snapshot import Snapshot
from tests.rank_probe.sink import listening


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


def test_exporter_absent_costs_nothing_but_a_count(tmp_path: Path) -> None:
    """Without an exporter pushes fail at once and are counted."""
    pusher = Pusher(f"unix:{tmp_path}/absent.sock", snapshot)
    started = time.monotonic()
    pusher.push()
    pusher.push()

    assert pusher.failed_pushes == 2
    assert time.monotonic() - started < 0.2


def test_snapshots_arrive_again_and_again(tmp_path: Path) -> None:
    """The thread keeps pushing over one connection."""
    with listening(tmp_path / "s") as sink:
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot, interval_seconds=0.02)
        pusher.start()
        assert wait_until(lambda: len(sink.snapshots) >= 3)
        pusher.stop()

    assert sink.snapshots[0]["job_id"] == "j"
    assert pusher.failed_pushes == 0


def test_exporter_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """A restarted exporter hears the rank without any help."""
    path = tmp_path / "s"
    pusher = Pusher(f"unix:{path}", snapshot, interval_seconds=0.02)
    with listening(path) as first:
        pusher.start()
        assert wait_until(lambda: bool(first.snapshots))
    path.unlink()
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


def test_exporter_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """A push to a stuck exporter ends within its short timeout."""
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "s"))
        stuck.listen()
        pusher = Pusher(f"unix:{tmp_path}/s", snapshot)
        started = time.monotonic()
        pusher.push()

        assert pusher.failed_pushes == 1
        assert time.monotonic() - started < 2


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

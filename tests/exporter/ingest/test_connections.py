"""The ingest listener knows whom it talks to, and how many may come."""

import os
import resource
import socket
from typing import Any

import pytest

from exporter.ingest.connections import Door, peer_uid


def test_peer_is_known_over_the_unix_socket_only() -> None:
    """The kernel says who opened a Unix socket; over loopback it does not."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs, socket.socket(socket.AF_INET) as tcp:
        assert peer_uid(ours) == os.geteuid()
        assert peer_uid(tcp) is None


def test_one_user_cannot_keep_the_others_out() -> None:
    """Half of the places is the most that one user gets, and all over loopback count as one."""
    door = Door(8)

    assert [door.enter(1000) for _ in range(5)] == [True] * 4 + [False]
    assert [door.enter(None) for _ in range(3)] == [True] * 3
    assert door.enter(1001)
    assert not door.enter(1002)
    door.leave(1000)
    assert door.enter(1002)


def test_smallest_bound_lets_one_in() -> None:
    """A bound of one connection is one, not none."""
    door = Door(1)

    assert door.enter(1000)
    assert not door.enter(1001)


def limit_files(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    limits: Any = lambda _: (soft, soft)  # noqa: E731 - as short as what it replaces
    monkeypatch.setattr(resource, "getrlimit", limits)


def test_bound_leaves_files_for_the_rest_of_the_exporter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However high the flag is set, connections take half of the process's files at most."""
    limit_files(monkeypatch, 16)
    door = Door(1_000)

    assert [door.enter(uid) for uid in range(9)] == [True] * 8 + [False]
    assert "only 8 of 1000 ingest connections" in caplog.text


@pytest.mark.parametrize("soft", [16, resource.RLIM_INFINITY])
def test_bound_that_fits_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int
) -> None:
    """Nobody is warned of a limit that is not in the way."""
    limit_files(monkeypatch, soft)
    door = Door(8)

    assert [door.enter(uid) for uid in range(9)] == [True] * 8 + [False]
    assert caplog.text == ""

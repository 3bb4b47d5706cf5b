"""A socket that is removed while the exporter runs is listened on anew, and said so."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.renewal import Renewal
from exporter.listeners.sockets import UnixListener
from tests.exporter.running import RunningExporter, running_exporter, wait_until
from tests.exporter.snapshots import snapshot

FLAG = "--some.socket"


async def _no_app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nobody calls")


def test_new_clients_find_the_socket_again(tmp_path: Path) -> None:
    """Directory and all, as a cleaner of /run would remove it; the mode is as before."""
    path = tmp_path / "room" / "e.sock"
    with running_exporter(path, f"--operator.socket={tmp_path / 'operator.sock'}") as exporter:
        _push(exporter)
        shutil.rmtree(path.parent)
        wait_until(path.exists)
        wait_until(
            lambda: any("was removed; the exporter listens" in line for line in exporter.log)
        )
        _push(exporter)

        assert path.stat().st_mode & 0o777 == 0o666


def test_what_is_there_stays(tmp_path: Path) -> None:
    """While the file is there, no other socket is opened."""
    unix = UnixListener(tmp_path / "e.sock", 0o666, FLAG)
    before = unix.socket

    assert unix.renew() is None
    assert unix.socket is before
    unix.close()


def test_failure_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that this user may not make costs one line of the log, not one a second."""
    path = tmp_path / "room" / "e.sock"
    unix = UnixListener(path, 0o666, FLAG)
    renewal = Renewal(unix, Listener([unix.socket], _no_app, Bounds(1, b"", b"")))
    shutil.rmtree(path.parent)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for _ in range(3):
        asyncio.run(renewal.look())
    unix.close()

    assert len(caplog.records) == 1
    assert "new clients cannot connect, and it is tried again" in caplog.text


def _push(exporter: RunningExporter) -> None:
    assert exporter.push(snapshot(job_id="renewed").to_json())[0] == 200

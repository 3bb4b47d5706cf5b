"""Listening sockets open where asked, replace only what is dead, and explain a refusal."""

import asyncio
import os
import shutil
import socket
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from exporter.errors import StartError, UsageError
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.renewal import Renewal
from exporter.listeners.sockets import UnixListener, host_and_port, open_loopback, open_tcp
from tests.exporter.listeners.serving import FLAG
from tests.exporter.running import running_exporter, wait_until
from tests.exporter.snapshots import snapshot


def listening(path: Path, mode: int = 0o666) -> closing[UnixListener]:
    return closing(UnixListener(path, mode, FLAG))


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """The socket file of an exporter that was killed."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    return path


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (":9917", ("", 9917)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9917", ("::1", 9917)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_address_is_split(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address, FLAG) == expected


@pytest.mark.parametrize("address", ["", "9917", "host", "host:", "host:x", "host:65536", "h:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"--some.socket: .* is not host:port"):
        host_and_port(address, FLAG)


def test_port_in_use_is_explained() -> None:
    with open_tcp("127.0.0.1:0", FLAG) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartError, match="Address already in use; stop what holds it or"):
            open_tcp(f"127.0.0.1:{port}", FLAG)


def test_empty_host_is_every_address() -> None:
    """`:port` is reached over IPv4, whatever else the node speaks."""
    with open_tcp(":0", FLAG) as listener:
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", ":0", "[::]:0", "example.org:0"])
def test_ingest_refuses_public_addresses(address: str) -> None:
    """Without a token anyone could push, so that listener stays on the node."""
    with pytest.raises(UsageError, match=r"is not a loopback address.* set --ingest.token-file"):
        open_loopback(address, FLAG)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
def test_ingest_listens_on_loopback(address: str) -> None:
    """Loopback is allowed, for containers that cannot share a socket."""
    with open_loopback(address, FLAG) as listener:
        assert listener.getsockname()[1] > 0


def test_unix_socket_is_made_with_its_mode_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with chmod() of its name: who may write to the directory could swap the file.

    Nor with a umask, which all threads share.
    """
    changed: list[Path] = []
    change = os.chmod

    def chmod(path: Path, mode: int, **options: bool) -> None:
        changed.append(Path(path))
        change(path, mode, **options)

    path = tmp_path / "made" / "here" / "e.sock"
    previous = os.umask(0o077)
    monkeypatch.setattr(os, "chmod", chmod)
    monkeypatch.setattr(os, "umask", None)
    try:
        with listening(path, 0o660):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    finally:
        monkeypatch.undo()
        os.umask(previous)

    assert list(path.parent.iterdir()) == []
    assert [each for each in changed if each.is_relative_to(tmp_path)] == [path.parent]


def test_stale_socket_of_a_dead_exporter_is_replaced(stale: Path) -> None:
    with listening(stale):
        connect(stale)


def test_living_exporter_keeps_its_socket(tmp_path: Path) -> None:
    """A second exporter is refused, and the first one still listens."""
    path = tmp_path / "e.sock"
    with listening(path):
        with pytest.raises(StartError, match=r"another exporter listens on .*: stop it or choose"):
            UnixListener(path, 0o666, FLAG)
        connect(path)


def test_of_many_exporters_starting_together_one_has_the_socket(stale: Path) -> None:
    """Finding the same stale socket at the same moment, the others know soon that they lost."""
    opened: list[UnixListener] = []
    refused: list[StartError] = []

    def start() -> None:
        try:
            opened.append(UnixListener(stale, 0o666, FLAG))
        except StartError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connect(stale)
    for listener in opened:
        try:
            assert listener.renew() is None
        except StartError as error:
            refused.append(error)
    for listener in opened:
        listener.close()

    assert len(refused) == 7
    assert {str(error).partition(" on ")[0] for error in refused} == {"another exporter listens"}
    assert list(stale.parent.iterdir()) == []


def test_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    """An exporter that ends late does not remove the file that another one made since."""
    path = tmp_path / "e.sock"
    first = UnixListener(path, 0o666, FLAG)
    path.unlink()
    with listening(path):
        first.close()
        assert path.exists()


def test_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    """A mistyped path cannot delete another file."""
    path = tmp_path / "data.txt"
    path.write_text("precious")

    with pytest.raises(StartError, match="is there and is not a socket: remove it or choose"):
        UnixListener(path, 0o666, FLAG)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/proc/nowhere/e.sock", "cannot create /proc/nowhere for a socket: .* turn it"),
        ("/proc/e.sock", "cannot open the socket /proc/e.sock: .* writable or choose"),
        (f"/tmp/{'x' * 200}", "AF_UNIX path too long; "),
    ],
)
def test_place_that_cannot_hold_a_socket_is_explained(path: str, complaint: str) -> None:
    """A directory that is missing, not writable, or too deep ends in one line with a way out."""
    with pytest.raises(StartError, match=complaint):
        UnixListener(Path(path), 0o666, FLAG)


def test_socket_that_was_removed_is_found_again(tmp_path: Path) -> None:
    """Directory and all, as a cleaner of /run would remove it; the mode is as before."""
    path = tmp_path / "room" / "e.sock"
    with running_exporter(path, f"--operator.socket={tmp_path / 'operator.sock'}") as exporter:
        assert exporter.push(snapshot().to_json())[0] == 200
        shutil.rmtree(path.parent)
        wait_until(path.exists)
        wait_until(lambda: any("removed; the exporter listens" in line for line in exporter.log))

        assert exporter.push(snapshot(sequence=2).to_json())[0] == 200
        assert path.stat().st_mode & 0o777 == 0o666


def test_socket_that_cannot_be_made_again_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that this user may not make costs one line of the log, not one a second."""

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("nobody calls")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    path = tmp_path / "room" / "e.sock"
    with listening(path) as unix:
        before = unix.socket
        assert unix.renew() is None  # While the file is there, no other socket is opened.
        assert unix.socket is before
        renewal = Renewal(unix, Listener([unix.socket], app, Bounds(1, b"", b"")))
        shutil.rmtree(path.parent)
        monkeypatch.setattr(Path, "mkdir", refuse)
        for _ in range(3):
            asyncio.run(renewal.look())

    assert len(caplog.records) == 1
    assert "new clients cannot connect, and it is tried again" in caplog.text

"""Listening sockets open where asked, replace only what is dead, and explain a refusal."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from exporter.errors import StartError, UsageError
from exporter.listeners.sockets import UnixListener, host_and_port, open_loopback, open_tcp

FLAG = "--some.address"


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
    """An address is a host, which may be empty, and a port."""
    assert host_and_port(address, FLAG) == expected


@pytest.mark.parametrize("address", ["", "9917", "host", "host:", "host:x", "host:65536", "h:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """An address without a valid port is a usage error that names the flag."""
    with pytest.raises(UsageError, match=r"--some.address: .* is not host:port"):
        host_and_port(address, FLAG)


def test_port_in_use_is_explained() -> None:
    """A second listener on a port learns that it is taken, and what to do."""
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


def test_unix_socket_is_made_with_its_mode_and_taken_away(tmp_path: Path) -> None:
    """The socket's directory is made, its mode is the one asked for, and it goes at the end."""
    path = tmp_path / "made" / "here" / "e.sock"
    previous = os.umask(0o077)
    try:
        listener = UnixListener(path, 0o660, FLAG)
    finally:
        os.umask(previous)

    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    listener.close()
    assert not path.exists()


def test_stale_socket_of_a_dead_exporter_is_replaced(tmp_path: Path) -> None:
    """A socket file without a listener is replaced."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = UnixListener(path, 0o666, FLAG)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    finally:
        listener.close()


def test_living_exporter_keeps_its_socket(tmp_path: Path) -> None:
    """A second exporter is refused, and the first one still listens."""
    path = tmp_path / "e.sock"
    first = UnixListener(path, 0o666, FLAG)
    try:
        with pytest.raises(StartError, match=r"another exporter listens on .*: stop it or choose"):
            UnixListener(path, 0o666, FLAG)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    finally:
        first.close()


def test_of_many_exporters_starting_together_one_wins(tmp_path: Path) -> None:
    """Finding the same stale socket at the same moment, only one replaces it."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    opened: list[UnixListener] = []
    refused: list[StartError] = []

    def start() -> None:
        try:
            opened.append(UnixListener(path, 0o666, FLAG))
        except StartError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for listener in opened:
        listener.close()

    assert (len(opened), len(refused)) == (1, 7)


def test_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    """An exporter that ends late does not remove the file that another one made since."""
    path = tmp_path / "e.sock"
    first = UnixListener(path, 0o666, FLAG)
    path.unlink()
    second = UnixListener(path, 0o666, FLAG)
    first.close()

    assert path.exists()
    second.close()


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
        (
            "/proc/nowhere/e.sock",
            "cannot create /proc/nowhere for a socket: .* turn it",
        ),
        ("/proc/e.sock", "cannot open the socket /proc/e.sock: .* writable or choose"),
        (f"/tmp/{'x' * 200}", "AF_UNIX path too long; "),
    ],
)
def test_place_that_cannot_hold_a_socket_is_explained(path: str, complaint: str) -> None:
    """A directory that is missing, not writable, or too deep ends in one line with a way out."""
    with pytest.raises(StartError, match=complaint):
        UnixListener(Path(path), 0o666, FLAG)


def test_mode_is_set_on_the_socket_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the directory cannot have the mode of another file changed."""
    changed = []
    monkeypatch.setattr(os, "chmod", lambda path, mode, **_: changed.append(path))
    listener = UnixListener(tmp_path / "e.sock", 0o666, FLAG)

    assert stat.S_IMODE((tmp_path / "e.sock").stat().st_mode) == 0o666
    assert changed == []
    listener.close()

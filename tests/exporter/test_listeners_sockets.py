"""Listening sockets open where asked, replace only what is dead, and know who connects."""

import asyncio
import errno
import os
import shutil
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest
from starlette.responses import Response

from exporter import server
from exporter.errors import Failures, StartError, UsageError
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener, Renewal
from exporter.listeners.peer import UNKNOWN, Peer, peer_of
from exporter.listeners.sockets import UnixListener, host_and_port, open_tcp
from tests.exporter.collectors.host import write

FLAG = "--some.socket"


def listening(path: Path, mode: int = 0o666) -> closing[UnixListener]:
    return closing(UnixListener(path, mode, FLAG))


def test_address_is_split_or_refused() -> None:
    """Without a host, the listener takes every address of the node, with or without IPv6."""
    for good, place in ((":9917", ("", 9917)), ("[::1]:1", ("::1", 1)), ("host:1", ("host", 1))):
        assert host_and_port(good, FLAG) == place
    for address in ("", "9917", "host", "host:", "host:x", "host:65536", "h:-1"):
        with pytest.raises(UsageError, match=r"--some.socket: .* is not host:port"):
            host_and_port(address, FLAG)
    with open_tcp(":0", FLAG) as listener:
        here = "127.0.0.1", listener.getsockname()[1]
        with socket.create_connection(here, timeout=5) as client:
            assert client.getpeername() == here


def test_unix_socket_is_made_with_its_mode_and_taken_away(tmp_path: Path) -> None:
    """The umask does not affect the mode: trainers of any user must be able to connect."""
    path = tmp_path / "made" / "here" / "e.sock"
    previous = os.umask(0o077)
    try:
        with listening(path, 0o660) as unix:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    finally:
        os.umask(previous)

    assert unix.socket.fileno() == -1
    assert list(path.parent.iterdir()) == []


def test_living_exporter_keeps_its_socket(tmp_path: Path) -> None:
    """A second exporter is refused, and the first one still listens; a dead one is replaced.

    One that ends late does not remove the file that another one made since, and knows that it lost.
    """
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with listening(path) as first:
        with pytest.raises(StartError, match=r"another exporter listens on .*: stop it or choose"):
            UnixListener(path, 0o666, FLAG)
        assert first.renew() is None
        path.unlink()
        successor = UnixListener(path, 0o666, FLAG)
        with pytest.raises(StartError, match="another exporter listens on"):
            first.renew()
    with closing(successor), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    """A mistyped path cannot delete another file."""
    path = tmp_path / "data.txt"
    path.write_text("precious")

    with pytest.raises(StartError, match="is there and is not a socket: remove it or choose"):
        UnixListener(path, 0o666, FLAG)
    assert path.read_text() == "precious"
    # A directory that is missing, not writable, or too deep ends in one line with a way out.
    for place, complaint in (
        ("/proc/nowhere/e.sock", "cannot create /proc/nowhere for a socket: .* turn it"),
        ("/proc/e.sock", "cannot open the socket /proc/e.sock: .* writable or choose"),
        (f"/tmp/{'x' * 200}", "AF_UNIX path too long; "),
    ):
        with pytest.raises(StartError, match=complaint):
            UnixListener(Path(place), 0o666, FLAG)


ANSWERS = Response(status_code=204)


class Busy(Listener):
    """A listener in a process that may have no file descriptor left."""

    is_busy = False

    async def _server(self, listening: socket.socket) -> asyncio.Server:
        if self.is_busy:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await super()._server(listening)


def test_socket_that_cannot_be_made_or_served_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that this user may not make, or no file left, costs a line of the log each.

    Not one a second; and nobody waits for ever in the queue of the socket.
    """
    room = tmp_path / "room"

    async def run(unix: UnixListener) -> bytes:
        listener = Busy([unix.socket], ANSWERS, Bounds(9, b"", b""))
        await listener.startup([unix.socket])
        renewing = Renewal(unix, listener)
        before = unix.socket
        await renewing.look()
        assert unix.socket is before  # While the file is there, no other socket is opened.
        shutil.rmtree(room)
        room.write_text("in its way")
        for _ in range(3):
            await renewing.look()
        room.unlink()
        await renewing.look()
        unix.path.unlink()
        for listener.is_busy in (True, True, False):
            await renewing.look()
        reader, writer = await asyncio.open_unix_connection(unix.path)
        writer.write(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
        line = await reader.readline()
        writer.close()
        assert stat.S_IMODE(unix.path.stat().st_mode) == 0o660
        (only,) = listener.servers
        only.close()
        return line

    with listening(room / "e.sock", 0o660) as unix:
        assert asyncio.run(run(unix)).startswith(b"HTTP/1.1 204 ")
    refused, served, full, served_again = caplog.messages
    assert refused.startswith("new clients cannot connect, and it is tried again: ")
    assert full.endswith("and it is tried again: [Errno 24] Too many open files")
    assert served == served_again == f"{room}/e.sock was removed; the exporter listens there anew"


def test_event_loop_goes_on_after_errors_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error in a background task or timer neither ends it nor fills the log."""
    monkeypatch.setattr("exporter.listeners.listener.LOOK_SECONDS", 0.001)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.001)
    looks: list[str] = []
    failures = Failures()

    class Odd(Renewal):
        def __init__(self) -> None:
            """Renew nothing."""

        async def look(self) -> None:
            looks.append("socket")
            raise KeyError("odd")

    def look(now: float, timestamp: float) -> None:
        looks.append("page")
        raise ValueError("odd")

    class Serves(Listener):
        async def serve_until_told(self) -> None:
            while min(looks.count("socket"), looks.count("page")) < 3:
                await asyncio.sleep(0.001)

    listener = Serves([], ANSWERS, Bounds(9, b"", b""))
    asyncio.run(server.run_all([listener], {"the page": look}, failures, [Odd()]))

    assert failures.count >= 6
    assert sorted(caplog.messages) == [
        "socket renewal failed and will be retried: KeyError: 'odd'",
        "the page failed and will be retried: ValueError: odd",
    ]


ME = os.geteuid()
POD = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f.slice/cri.scope"
POD_UID = "0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f"
ANOTHER_UID = "ffffffff_ffff_ffff_ffff_ffffffffffff"


@pytest.mark.parametrize(
    ("cgroup", "ids", "container"),
    [
        # Two sessions of one user are the same peer; pods, containers and batch jobs are not.
        ("0::/user.slice/user-1000.slice/session-3.scope", "", ""),
        (f"{POD}\n", "", POD_UID),
        (f"0::/system.slice/docker-{'a1' * 32}.scope", "", "a1" * 32),
        # A user may give any name to what is below the own service.
        (f"0::/user.slice/user@7.service/app.slice/{'a1' * 32}.scope", "", ""),
        # Root in a privileged container can name a cgroup after another pod, and is not that pod.
        (f"{POD}/kubepods-pod{ANOTHER_UID}.slice", "", f"{POD_UID} {ANOTHER_UID}"),
        # LXC, systemd-nspawn or bubblewrap: no cgroup names it, so it is its PID namespace. One
        # within the container is still that container.
        ("0::/", "9\t1", "namespace of process 700"),
        # The container of a process that entered one, or that has ended, is unknown. It is never
        # taken for the node: root in a container could hand its connection on and exit.
        ("0::/", "57", UNKNOWN),
        (None, "", UNKNOWN),
    ],
)
def test_peer_is_a_user_in_a_container(
    tmp_path: Path, cgroup: str | None, ids: str, container: str
) -> None:
    """Root of a container is not the node's, without any privilege to see that."""
    own = os.getpid()
    parent = 800 if "\t" in ids else 600
    # The parent and the ids of each process: on the node, in its own namespace and any between.
    family = {own: (parent, f"{own}\t{ids}"), 800: (700, "800\t5"), 700: (600, "700\t1")}
    for pid, (its_parent, its_ids) in (family | {600: (1, "600")}).items():
        status = f"Name:\tx\nPPid:\t{its_parent}\nNSpid:\t{its_ids}\n"
        write(tmp_path / str(pid) / "status", status)
    if cgroup is not None:
        write(tmp_path / str(own) / "cgroup", cgroup)
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        peer = peer_of(one, tmp_path)

    assert peer == Peer(ME, container)
    assert peer.may_act_for(peer)
    # The other way round nobody does: root in a container is not the node's.
    assert peer.may_act_for(Peer(ME, "another")) == (container == "")
    assert not any(map(peer.may_act_for, (None, Peer(ME + 1), Peer(ME + 1, container))))
    with socket.socket(socket.AF_INET) as tcp:
        assert peer_of(tcp) is None

"""Connections that do not finish their TLS handshake are few, whoever they are."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from exporter.listeners.handshakes import Handshakes, TlsListener

Connected = Callable[..., tuple[socket.socket, socket.socket]]


def is_shut(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def handshakes() -> Handshakes:
    return Handshakes(3)


@pytest.fixture
def connected(handshakes: Handshakes) -> Iterator[Connected]:
    """Connects from an address to a listener with *handshakes*; returns both ends."""
    with ExitStack() as stack:
        opened = TlsListener(socket.create_server(("127.0.0.1", 0)), handshakes)
        listener = stack.enter_context(opened)

        def connected(address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
            client = socket.create_connection(listener.getsockname(), 5, (address, 0))
            return stack.enter_context(client), stack.enter_context(listener.accept()[0])

        yield connected


def test_oldest_of_the_largest_crowd_is_shut_down(connected: Connected) -> None:
    """Two of one address wait, one of another: for a fourth the older of the two goes."""
    addresses = ("127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.2")
    clients = [connected(address)[0] for address in addresses]

    assert [is_shut(client) for client in clients] == [False, True, False, False]


def test_who_is_done_or_gone_makes_room(handshakes: Handshakes, connected: Connected) -> None:
    """One finishes its handshake and one is closed: more come in without harm to others."""
    done, ours = connected()
    _, closed = connected()
    handshakes.end(ours.fileno())
    closed.close()
    waiting = [connected()[0] for _ in range(3)]

    assert not any(is_shut(client) for client in (done, *waiting))

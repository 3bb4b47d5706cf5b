"""Connections that do not finish their TLS handshake are few, whoever they are."""

import socket
from contextlib import ExitStack

from exporter.listeners.handshakes import Handshakes, TlsListener


def is_shut(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_oldest_of_the_largest_crowd_is_shut_down() -> None:
    """Two of one address wait, one of another: for a fourth the older of the two goes."""
    handshakes = Handshakes(3)
    with ExitStack() as stack:
        listener = stack.enter_context(
            TlsListener(socket.create_server(("127.0.0.1", 0)), handshakes)
        )
        clients = []
        for address in ("127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.2"):
            client = socket.create_connection(listener.getsockname(), 5, (address, 0))
            stack.callback(client.close)
            stack.callback(listener.accept()[0].close)
            clients.append(client)

        assert [is_shut(client) for client in clients] == [False, True, False, False]


def test_who_is_done_or_gone_makes_room() -> None:
    """One finishes its handshake and one is closed: two more come in without harm to others."""
    handshakes = Handshakes(2)
    with ExitStack() as stack:
        listener = stack.enter_context(
            TlsListener(socket.create_server(("127.0.0.1", 0)), handshakes)
        )

        def connected() -> tuple[socket.socket, socket.socket]:
            client = stack.enter_context(socket.create_connection(listener.getsockname(), 5))
            return client, stack.enter_context(listener.accept()[0])

        done, ours = connected()
        _, closed = connected()
        handshakes.end(ours.fileno())
        closed.close()
        waiting = [connected()[0] for _ in range(2)]

        assert not any(is_shut(client) for client in (done, *waiting))

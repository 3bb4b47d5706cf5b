"""Limits the accepted connections that have not finished their TLS handshake.

They have no protocol yet, so nothing else counts them: clients that connect and send nothing would
use up the exporter's file descriptors.
"""

import socket
from collections import Counter
from contextlib import suppress
from typing import Any, Final

# Far more handshakes than can be under way at once; one takes a few milliseconds.
HANDSHAKES_MAX: Final = 64
# A scraper on the other side of the world needs one second.
HANDSHAKE_SECONDS: Final = 5.0


class Handshakes:
    """Allows HANDSHAKES_MAX handshakes; beyond that, each new one ends another.

    It ends the oldest one from the address that has the most.
    """

    def __init__(self) -> None:
        # By file descriptor, oldest first.
        self._begun: dict[int, tuple[str, socket.socket]] = {}

    def begin(self, connection: socket.socket, address: str) -> None:
        """Count *connection* until end().

        A connection that ended during its handshake stays in the list until its turn comes.
        """
        self.end(connection.fileno())  # An earlier connection may have had this number.
        if len(self._begun) >= HANDSHAKES_MAX:
            self._shut_one_down()
        self._begun[connection.fileno()] = (address, connection)

    def end(self, descriptor: int) -> None:
        """Stop counting a connection whose handshake is done."""
        self._begun.pop(descriptor, None)

    def _shut_one_down(self) -> None:
        ((crowd, _),) = Counter(address for address, _ in self._begun.values()).most_common(1)
        oldest = next(fd for fd, (address, _) in self._begun.items() if address == crowd)
        _, connection = self._begun.pop(oldest)
        with suppress(OSError):  # It may have ended by itself.
            connection.shutdown(socket.SHUT_RDWR)


class TlsListener(socket.socket):
    """A listening socket that counts its connections' handshakes; it replaces *listening*."""

    def __init__(self, listening: socket.socket, handshakes: Handshakes) -> None:
        super().__init__(fileno=listening.detach())
        self._handshakes = handshakes

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection and count it; raises the errors of socket.accept()."""
        connection, address = super().accept()
        self._handshakes.begin(connection, address[0])
        return connection, address

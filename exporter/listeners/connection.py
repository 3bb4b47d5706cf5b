"""HTTP/1.1 for both listeners: uvicorn's, with limits on connections, their time and their size.

uvicorn's limit_concurrency counts idle connections but refuses only requests, and its
timeout_keep_alive runs only between an answer and the next byte. A connection that sends nothing,
or never finishes its request, would stay until the exporter runs out of file descriptors. uvicorn
also limits neither the size of a request's head nor the number of requests that a client may send
before it reads an answer.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from exporter.listeners.handshakes import Handshakes
from exporter.listeners.peer import Peer, peer_of

# A connection that completes no request for so long is dropped. Longer than any scrape, and far
# longer than the second between two pushes of a rank: a rank that is busy in native code cannot
# push, and keeps its connection.
REQUEST_SECONDS: Final = 30.0
# One address or one user may hold this share of a listener's connections.
SHARE: Final = 0.5
# The limit of uvicorn's other parser. Counted per read of asyncio, which returns up to 256 KiB.
HEAD_BYTES: Final = 64 * 1024
# Neither Prometheus nor the probe sends a request before it has read the last answer.
MOST_PIPELINED: Final = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one listener.

    With *connections* open, a new connection replaces the one that has been idle longest, if
    *idle_gives_way*; otherwise it is answered 503 with *no_room*, JSON or text, and *turned_away*
    is called. With TLS, *handshakes* holds the connections that have not finished their handshake.
    """

    connections: int
    no_room: bytes
    content_type: bytes
    idle_gives_way: bool = True
    turned_away: Callable[[], None] = lambda: None
    handshakes: Handshakes | None = None

    def refusal(self) -> bytes:
        """Return the answer to a connection for which there is no room."""
        return (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: %b\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (self.content_type, len(self.no_room), self.no_room)
        )


class Connection(HttpToolsProtocol):
    """One connection; bounded() sets *bounds*.

    Its requests carry the peer as `scope["state"]["peer"]`, None over TCP.
    """

    bounds: ClassVar[Bounds]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start serving *transport*, or answer 503 and close it unread if there is no room."""
        connection = transport.get_extra_info("socket")
        if self.bounds.handshakes is not None:
            self.bounds.handshakes.end(connection.fileno())
        peer = peer_of(connection)
        self._owner = _owner(transport, peer)
        self._idle_since = self.loop.time()
        if not self._find_room():
            self.bounds.turned_away()
            transport.set_protocol(asyncio.Protocol())  # Ignores all data from now on.
            transport.write(self.bounds.refusal())
            transport.close()
            return
        self._deadline = self.loop.time() + REQUEST_SECONDS
        self._timer = self.loop.call_at(self._deadline, self._abort_if_late)
        self._head_bytes = 0
        super().connection_made(transport)
        self.app_state = {"peer": peer}  # Each request's scope["state"] is a copy.

    def _find_room(self) -> bool:
        """Return whether there is room, after ending idle connections if needed."""
        share = max(1, int(self.bounds.connections * SHARE))
        for same_owner, most in ((True, share), (False, self.bounds.connections)):
            crowd = [
                each
                for each in self.connections
                if isinstance(each, Connection) and (not same_owner or each._owner == self._owner)
            ]
            if len(crowd) >= most and not (self.bounds.idle_gives_way and _give_way(crowd)):
                return False
        return True

    def _is_idle(self) -> bool:
        # A client that does not read its answer counts as idle: closing it loses no work.
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes; answer 400 if the head is too large."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """Begin a request, or answer 400 if too many are waiting already."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise httptools.HttpParserError("too many requests at once")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Reset the count: a body follows, or another protocol after an upgrade."""
        self._head_bytes = 0
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Reset the count, which then covers only trailers and chunk extensions."""
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Restart the deadline for the next request."""
        self._idle_since = self.loop.time()
        self._deadline = self._idle_since + REQUEST_SECONDS
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; while another answer is under way, none can be sent."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _abort_if_late(self) -> None:
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._abort_if_late)
        else:
            # Not close(), which would wait for a peer that does not read its answer.
            self.transport.abort()


def _owner(transport: asyncio.Transport, peer: Peer | None) -> Hashable:
    """Return whose share the connection counts towards: a user's, or an address's over TCP."""
    return peer.sharer if peer is not None else transport.get_extra_info("peername")[0]


def _give_way(crowd: Collection[Connection]) -> bool:
    """End the connection in *crowd* that has been idle longest; False if none is idle."""
    idle = [each for each in crowd if each._is_idle()]
    if not idle:
        return False
    longest = min(idle, key=lambda each: each._idle_since)
    longest.connections.discard(longest)
    longest.transport.abort()
    return True


def bounded(the_bounds: Bounds) -> type[Connection]:
    """Return the protocol class of one listener."""

    class Bounded(Connection):
        bounds = the_bounds

    return Bounded

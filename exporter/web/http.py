"""HTTP/1.1 of the web listener: uvicorn's, with bounds on the connections and on their time.

uvicorn's limit_concurrency counts idle connections but refuses only requests, and its
timeout_keep_alive runs only between a response and the next byte: a connection that sends nothing,
or never completes its request, stays open until the exporter runs out of file descriptors. So
connection_made, connection_lost and uvicorn's on_response_complete are extended.

When all connections are in use, a new one replaces the one that has been idle longest, so idle
clients cannot keep a scraper out.
"""

import asyncio
from collections.abc import Collection
from typing import ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from exporter.web.handshakes import Handshakes

# Far more than some Prometheus replicas and open browsers need.
CONNECTIONS_MAX: Final = 128
# The limit for one address, so that others can connect too.
SHARE: Final = 0.5
# Longer than any scrape may take.
REQUEST_SECONDS: Final = 30.0
SENTENCE: Final = b"Too many web connections are open on this exporter; try again later.\n"
NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(SENTENCE), SENTENCE)
)


class WebConnection(H11Protocol):
    """One connection; web_protocol() fills in the bounds."""

    connections_max: ClassVar[int]
    request_seconds: ClassVar[float]
    handshakes: ClassVar[Handshakes | None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to serve *transport*, or answer 503 and close it unread when there is no room."""
        if self.handshakes is not None:
            self.handshakes.end(transport.get_extra_info("socket").fileno())
        self._address = transport.get_extra_info("peername")[0]
        self._idle_since = asyncio.get_running_loop().time()
        if not self._find_room():
            transport.set_protocol(asyncio.Protocol())  # It is no longer served.
            transport.write(NO_ROOM)
            transport.close()
            return
        self._deadline = self._abort_later(transport)
        super().connection_made(transport)

    def _find_room(self) -> bool:
        """Whether another connection fits, after closing an idle one if necessary."""
        share = max(1, int(self.connections_max * SHARE))
        for same_address, most in ((True, share), (False, self.connections_max)):
            crowd = [
                each
                for each in self.connections
                if isinstance(each, WebConnection)
                and (not same_address or each._address == self._address)
            ]
            if len(crowd) >= most and not _give_way(crowd):
                return False
        return True

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Give the connection, unless it is closing, the same time again for its next request."""
        super().on_response_complete()
        self._idle_since = asyncio.get_running_loop().time()
        if not self.transport.is_closing():
            self._deadline.cancel()
            self._deadline = self._abort_later(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to data that is not HTTP, and drop the request that came with it.

        uvicorn's own method does not check whether a response has begun, and lets the application
        write to a connection that has ended, which logs a traceback each time.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True

    def _abort_later(self, transport: asyncio.Transport) -> asyncio.TimerHandle:
        # Not close(): that would wait for a peer that does not read its answer.
        return asyncio.get_running_loop().call_later(self.request_seconds, transport.abort)


def _give_way(crowd: Collection[WebConnection]) -> bool:
    """Close the connection of *crowd* that has been idle longest; False if all are busy."""
    idle = [each for each in crowd if each._is_idle()]
    if not idle:
        return False
    longest = min(idle, key=lambda each: each._idle_since)
    longest.connections.discard(longest)
    longest.transport.abort()
    return True


def web_protocol(
    connections: int = CONNECTIONS_MAX,
    seconds: float = REQUEST_SECONDS,
    begun: Handshakes | None = None,
) -> type[WebConnection]:
    """Return the protocol for one listener.

    It serves at most *connections*, and closes one that completes no request for *seconds*. With
    TLS, *begun* are the connections that are still in their handshake.
    """

    class Bounded(WebConnection):
        connections_max = connections
        request_seconds = seconds
        handshakes = begun

    return Bounded

"""HTTP/1.1 of the web listener: uvicorn's, with bounds on the connections and on their time.

uvicorn's limit_concurrency counts idle connections but refuses only requests, and its
timeout_keep_alive runs only between an answer and the next byte: a connection that says nothing, or
never ends its request, stays for ever, until the exporter is out of files. So connection_made,
connection_lost and uvicorn's on_response_complete are extended.

Whoever comes when there is no room takes the place of the connection that has been idle longest:
a crowd that says nothing, or takes no answers, keeps no scraper out.
"""

import asyncio
from collections.abc import Collection
from typing import ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from exporter.web.handshakes import Handshakes

# Far more than some Prometheus replicas and open browsers need.
CONNECTIONS_MAX: Final = 128
# Of one address: others need room too, whatever it asks for.
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
            transport.set_protocol(asyncio.Protocol())  # Nobody serves it any more.
            transport.write(NO_ROOM)
            transport.close()
            return
        self._deadline = self._abort_later(transport)
        super().connection_made(transport)

    def _find_room(self) -> bool:
        """Say whether there is room, after idle connections have given way."""
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
        # While the client takes no answer there is no work that could be lost on it.
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        return not is_at_work or self.flow.write_paused

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
        """Refuse what is no HTTP; the request that it came with is not answered any more.

        uvicorn's own does not look whether an answer has begun, and lets the application go on to
        answer a connection that has ended: a traceback in the log for each.
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
    """End the connection of *crowd* that has been idle longest; False where all are at work."""
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

    It holds *connections* at most, and drops one that completes no request for *seconds*. With TLS,
    *begun* are those that have yet to get here.
    """

    class Bounded(WebConnection):
        connections_max = connections
        request_seconds = seconds
        handshakes = begun

    return Bounded

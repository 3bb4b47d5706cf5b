"""HTTP/1.1 of the ingest listener: one connection, its bounds in bytes and time, and its peer.

Not an ASGI server: the answer to a push is known at once, and a task, an event, timers and two
writes for each request cost several times what taking in the snapshot does. httptools parses: what
is no HTTP is refused by the parser of Node.js. uvicorn.Server accepts the connections and, through
its *server_state*, ends them.
"""

import asyncio
import json
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from exporter.ingest.connections import Door, peer_uid

# Far longer than the second between two pushes of a rank: one that is busy in native code, and so
# cannot push, keeps its connection. An idle one costs a file descriptor of a bounded number.
REQUEST_SECONDS: Final = 30.0
# What a request may have beside its body: far more than a client sends. It is counted in reads of
# asyncio, of up to 256 KiB.
HEAD_BYTES: Final = (64 + 256) * 1024
PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """A request as far as it has come; *uid* is who sent it, None where the kernel cannot tell."""

    uid: int | None
    method: str = ""  # empty until the whole head is there
    path: str = ""
    authorization: str = ""
    origin: str = ""
    content_length: int = 0
    body: bytearray = field(default_factory=bytearray)
    waits_for_continue: bool = False
    keep_alive: bool = False

    @property
    def body_bytes(self) -> int:
        """How large the body is, as announced or as far as it has come."""
        return max(self.content_length, len(self.body))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered; *content* goes out as JSON."""

    status: int
    content: Any
    headers: tuple[tuple[str, str], ...] = ()

    def to_bytes(self, with_body: bool = True, is_last: bool = False) -> bytes:
        """Return the answer as it is sent; *is_last*: the connection ends with it."""
        body = json.dumps(self.content).encode()
        lines = [
            f"HTTP/1.1 {self.status} {PHRASES[self.status]}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if is_last:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return head + body if with_body else head


class Handler(Protocol):
    """What is asked for the answers."""

    max_body_bytes: int

    def answer(self, request: Request) -> Answer:
        """Return the answer to *request*, whose body may be too large, and then is not whole."""
        ...

    def broken_off(self, request: Request) -> None:
        """Take note of a request whose connection ended first, maybe within its head."""
        ...


NOT_HTTP: Final = Answer(400, {"error": "This is not HTTP/1.1, or a request that never ends."})
NO_ROOM: Final = Answer(
    503,
    {
        "error": "Too many ingest connections are open on this node, in all or of this user; "
        "close idle ones, or raise --ingest.connections-per-rank."
    },
)


class IngestConnection(asyncio.Protocol):
    """One connection; ingest_protocol() fills in what all of them share.

    Requests that come together are answered one at a time, and nothing is read meanwhile, nor
    while the client does not take its answers.
    """

    handler: ClassVar[Handler]
    door: ClassVar[Door]
    results: ClassVar[MutableMapping[str, int]]
    request_seconds: ClassVar[float]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._connections: set[Any] = server_state.connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._whole: deque[Request] = deque()
        self._unfinished: Request | None = None
        self._unfinished_bytes = 0
        # What ends the connection once all whole requests are answered.
        self._last: Answer | None = None
        self._has_ended = False
        self._client_reads = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # a socket's
        """Begin to serve *transport*, or answer 503 and close it unread when there is no room."""
        self._transport = transport
        self._uid = peer_uid(transport.get_extra_info("socket"))
        if not self.door.enter(self._uid):
            self.results["turned_away"] += 1
            transport.set_protocol(asyncio.Protocol())  # Nobody serves it any more.
            transport.write(NO_ROOM.to_bytes(is_last=True))
            transport.close()
            return
        self._connections.add(self)
        self._deadline = self._loop.time() + self.request_seconds
        self._timer = self._loop.call_at(self._deadline, self._abort_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for the next connection."""
        self._timer.cancel()
        self._connections.discard(self)
        self.door.leave(self._uid)
        self._whole.clear()
        if self._unfinished is not None and self._last is None:
            self.handler.broken_off(self._unfinished)

    def shutdown(self) -> None:
        """End the connection, with what was answered; uvicorn calls this at its own end."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take in the next bytes and answer what they complete."""
        if self._last is not None:
            return  # Read and thrown away: closing on a client that still sends hides the answer.
        already_whole = len(self._whole)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._whole:  # Answered as any other; what follows is not HTTP.
                self._whole[-1].keep_alive = False
        except httptools.HttpParserError:
            self._last = NOT_HTTP
        if len(self._whole) > already_whole:
            self._unfinished_bytes = 0
        elif self._last is None:
            self._unfinished_bytes += len(data)
            self._judge_unfinished()
        self._answer_next()

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not take its answers."""
        self._client_reads = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._client_reads = True
        self._answer_next()

    def _judge_unfinished(self) -> None:
        request = self._unfinished
        if request is not None and request.body_bytes > self.handler.max_body_bytes:
            self._last = self.handler.answer(request)
        elif self._unfinished_bytes > self.handler.max_body_bytes + HEAD_BYTES:
            self._last = NOT_HTTP
        elif request is not None and request.waits_for_continue:
            request.waits_for_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer_next(self) -> None:
        if self._has_ended or not self._client_reads or self._transport.is_closing():
            return
        if self._whole:
            self._answer(self._whole.popleft())
        elif self._last is not None:
            self._end(self._last)
        if self._whole or (self._last is not None and not self._has_ended):
            self._transport.pause_reading()
            self._loop.call_soon(self._answer_next)
        elif self._client_reads:
            self._transport.resume_reading()

    def _answer(self, request: Request) -> None:
        answer = self.handler.answer(request)
        with_body, is_last = request.method != "HEAD", not request.keep_alive
        self._transport.write(answer.to_bytes(with_body, is_last))
        # The same time again for the next request; the timer finds out when it fires.
        self._deadline = self._loop.time() + self.request_seconds
        if is_last:
            self._has_ended = True
            self._transport.close()

    def _end(self, answer: Answer) -> None:
        """Send the last answer, and leave it to the client, or to the time, to close."""
        self._has_ended = True
        self._transport.write(answer.to_bytes(is_last=True))
        self._transport.write_eof()

    def _abort_if_late(self) -> None:
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._abort_if_late)
        else:
            # Not close(): that would wait for a peer that does not read its answer.
            self._transport.abort()

    # What the parser calls, in this order; an exception here would be lost in it.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._unfinished = Request(self._uid)
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few headers that mean something here."""
        request, name = self._unfinished, name.lower()
        if request is None:
            return
        if name == b"content-length" and value.isdigit():  # The parser refuses all others.
            request.content_length = int(value)
        elif name == b"authorization":
            request.authorization = value.decode("latin-1")
        elif name == b"origin":
            request.origin = value.decode("latin-1")
        elif name == b"expect":
            request.waits_for_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Know what is asked for."""
        if self._unfinished is not None:
            self._unfinished.method = self._parser.get_method().decode("latin-1")
            self._unfinished.path = self._url.partition(b"?")[0].decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._unfinished is not None:
            self._unfinished.body += body

    def on_message_complete(self) -> None:
        """Put the request among those to be answered."""
        if self._unfinished is not None:
            self._unfinished.keep_alive = self._parser.should_keep_alive()
            self._whole.append(self._unfinished)
            self._unfinished = None


def ingest_protocol(
    the_handler: Handler,
    the_door: Door,
    the_results: MutableMapping[str, int],
    seconds: float = REQUEST_SECONDS,
) -> type[IngestConnection]:
    """Return the protocol for one listener, which counts whom it turns away in *the_results*.

    A connection that completes no request for *seconds* is dropped.
    """

    class Guarded(IngestConnection):
        handler = the_handler
        door = the_door
        results = the_results
        request_seconds = seconds

    return Guarded

"""Who is connected to the ingest listener: as which user, how many at once, and for how long.

uvicorn does not say who the peer of a Unix socket is. Its limit_concurrency counts idle connections
but refuses only requests, and its timeout_keep_alive runs only between an answer and the next
byte: a connection that says nothing, or never ends its request, stays for ever. So this listener
runs uvicorn's own h11 protocol with asyncio's connection_made and connection_lost extended, and
uvicorn's on_response_complete. The user travels in the `state` of the ASGI scope, which uvicorn
copies for each request from the *app_state* that it makes the protocol with.
"""

import asyncio
import json
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, ClassVar, Final

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from exporter.ingest import RESULTS

logger = logging.getLogger(__name__)

# Far longer than the second between two pushes of a rank: one that is busy in native code, and so
# cannot push, keeps its connection. An idle one costs a file descriptor of a bounded number.
REQUEST_SECONDS: Final = 30
# struct ucred of unix(7): pid, uid, gid.
CREDENTIALS: Final = struct.Struct("iII")
UID: Final = "peer_uid"


def uid_of(scope: Scope) -> int | None:
    """Return the user who sent the request, None over loopback: there the kernel does not tell."""
    uid: int | None = scope.get("state", {}).get(UID)
    return uid


class Door:
    """Lets in *connections_max* connections, and of one user half of them: others need room too.

    All that come over loopback count as one user.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = _affordable(connections_max)
        self._inside: Counter[int | None] = Counter()

    def enter(self, uid: int | None) -> bool:
        """Count one more connection of *uid*; False, and not counted, when there is no room."""
        share = max(1, self._connections_max // 2)
        if self._inside.total() >= self._connections_max or self._inside[uid] >= share:
            return False
        self._inside[uid] += 1
        return True

    def leave(self, uid: int | None) -> None:
        """Count one connection of *uid* less."""
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]


class IngestProtocol(H11Protocol):
    """One connection of the ingest listener; ingest_protocol() fills in what all of them share."""

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
        self._scope_state = dict(app_state)
        super().__init__(config, server_state, self._scope_state, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to serve *transport*, or answer 503 and close it unread when there is no room."""
        uid = _peer_uid(transport.get_extra_info("socket"))
        if not self.door.enter(uid):
            self.results["turned_away"] += 1
            _turn_away(transport)
            return
        self._scope_state[UID] = uid
        self._deadline = self._abort_later(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for the next connection."""
        self._deadline.cancel()
        self.door.leave(self._scope_state[UID])
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Give the connection, unless it is closing, the same time again for its next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._deadline.cancel()
            self._deadline = self._abort_later(self.transport)

    def _abort_later(self, transport: asyncio.Transport) -> asyncio.TimerHandle:
        # Not close(): that would wait for a peer that does not read its answer.
        return asyncio.get_running_loop().call_later(self.request_seconds, transport.abort)


def ingest_protocol(
    the_door: Door, the_results: MutableMapping[str, int], seconds: float = REQUEST_SECONDS
) -> type[IngestProtocol]:
    """Return the protocol for one listener, which counts whom it turns away in *the_results*.

    A connection that completes no request for *seconds* is dropped.
    """

    class Guarded(IngestProtocol):
        door = the_door
        results = the_results
        request_seconds = seconds

    return Guarded


def _affordable(connections: int) -> int:
    """Return *connections*, or half the files that this process may open if those are fewer."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or connections <= files // 2:
        return connections
    logger.warning(
        "only %d of %d ingest connections can be open at once: "
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
        files // 2,
        connections,
    )
    return files // 2


def _peer_uid(connection: socket.socket) -> int | None:
    """Return who opened *connection*; users that this user namespace does not know are all one."""
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    uid: int = CREDENTIALS.unpack(credentials)[1]
    return uid


def _turn_away(transport: asyncio.Transport) -> None:
    status = HTTPStatus(RESULTS["turned_away"])
    sentence = (
        "Too many ingest connections are open on this node, in all or of this user; "
        "close idle ones, or raise --ingest.connections-per-rank."
    )
    body = json.dumps({"error": sentence})
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    transport.set_protocol(asyncio.Protocol())  # Nobody serves it any more.
    transport.write((head + body).encode())
    transport.close()

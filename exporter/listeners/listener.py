"""Serves open sockets in the event loop that all listeners share."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from exporter.errors import Failures, StartError
from exporter.listeners.connection import REQUEST_SECONDS, Bounds, bounded
from exporter.listeners.handshakes import HANDSHAKE_SECONDS
from exporter.listeners.sockets import BACKLOG, UnixListener

# The time for requests in flight once the exporter is told to end.
SHUTDOWN_SECONDS: Final = 1
# How often the Date header of answers is refreshed.
DATE_SECONDS: Final = 1.0
logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


class Listener(uvicorn.Server):
    """Serves *app* to the connections of *sockets*, within *bounds*, until end() is called."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        app: ASGIApp,
        bounds: Bounds,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=bounded(bounds),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(REQUEST_SECONDS),  # A connection ends by itself first.
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self._sockets = list(sockets)
        self._told_to_end = asyncio.Event()

    async def serve_until_told(self) -> None:
        """Serve until end() is called, then let requests in flight finish."""
        await self.serve(self._sockets)

    def end(self) -> None:
        """Make serve_until_told() return soon."""
        self._told_to_end.set()

    async def listen_instead(self, before: socket.socket, after: socket.socket) -> None:
        """Accept connections on *after*, and none on *before*; those that are open stay."""
        new = await self._server(after)
        old = [each for each in self.servers if each.sockets[0].fileno() == before.fileno()]
        self.servers = [*(each for each in self.servers if each not in old), new]
        for each in old:
            each.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with a shorter time limit for TLS handshakes."""
        self.servers = [await self._server(each) for each in sockets or ()]
        self.started = True

    async def _server(self, listening: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        config = self.config

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn's
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )

        return await loop.create_server(
            protocol,
            sock=listening,
            ssl=config.ssl,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if config.ssl else None,
            backlog=BACKLOG,
        )

    async def main_loop(self) -> None:
        """Wait for end(); uvicorn's own loop wakes ten times a second to check."""
        while not self._told_to_end.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._told_to_end.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the owner of the event loop."""
        yield


class Renewal:
    """Keeps *unix*, one of the sockets of *listener*, where clients look for it.

    Clients that are connected notice nothing.
    """

    def __init__(self, unix: UnixListener, listener: Listener) -> None:
        self._unix = unix
        self._listener = listener
        self._served = unix.socket
        self._is_failing = False

    async def look(self) -> None:
        """Listen anew if the file is gone; what prevents it is logged once."""
        try:
            self._unix.renew()
            after = self._unix.socket
            if after is self._served:
                return
            await self._listener.listen_instead(self._served, after)
        except (StartError, OSError) as error:
            if not self._is_failing:
                logger.warning("new clients cannot connect, and it is tried again: %s", error)
            self._is_failing = True
            return
        self._served = after
        self._is_failing = False
        logger.warning("%s was removed; the exporter listens there anew", self._unix.path)


async def renew_for_ever(renewals: Sequence[Renewal], failures: Failures) -> None:
    """Look after all *renewals* until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for renewal in renewals:
            with failures.caught("socket renewal"):
                await renewal.look()

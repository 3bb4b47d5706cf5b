"""The exporter process: opens its listeners, serves them in one event loop, and ends cleanly."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from exporter.live.page import LiveView
from exporter.settings import Settings
from exporter.sockets import BACKLOG, UnixListener, open_loopback, open_tcp
from exporter.web.config import WebConfig, load_web_config
from exporter.web.handshakes import HANDSHAKE_SECONDS, Handshakes, TlsListener
from exporter.web.http import web_protocol
from exporter.wiring import Exporter
from rank_probe.version import __version__

logger = logging.getLogger(__name__)

# What a request in flight gets when the exporter is told to end.
SHUTDOWN_SECONDS: Final = 1
LIVE_INTERVAL_SECONDS: Final = 1.0
# How often the Date header of the web listener's answers is renewed.
DATE_SECONDS: Final = 1.0


class Listener(uvicorn.Server):
    """Serves sockets that are open already; end() ends it, no signal does.

    *protocol* serves a connection, made as uvicorn makes its own; *app* is what it asks, if it asks
    an ASGI application.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: type[asyncio.Protocol],
        app: ASGIApp | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type] # nothing but the protocol looks at it
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
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
        """Have serve_until_told() return soon."""
        self._told_to_end.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, as uvicorn does, which leaves a minute for a TLS handshake."""
        loop = asyncio.get_running_loop()
        config = self.config

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn's
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )

        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if config.ssl else None,
                backlog=BACKLOG,
            )
            for each in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Wait; uvicorn's own loop wakes ten times a second to see whether it is told."""
        while not self._told_to_end.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._told_to_end.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to run_all()."""
        yield


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; raises UsageError or StartError when it cannot begin."""
    _configure_logging()
    file = settings.web_config_file
    config = load_web_config(Path(file)) if file else WebConfig()
    exporter = Exporter(settings, config)
    with ExitStack() as stack:
        web = open_tcp(settings.web_listen_address, "--web.listen-address")
        handshakes = None if config.tls is None else Handshakes()
        if handshakes is not None:
            web = TlsListener(web, handshakes)
        stack.callback(web.close)
        ingest = _open_ingest(settings, stack)
        protocol = web_protocol(begun=handshakes)
        listeners = [Listener([web], protocol, exporter.web_app(), config.tls)]
        if ingest:
            listeners.append(Listener(ingest, exporter.ingest_protocol()))
        stack.callback(exporter.stop)
        exporter.start()
        _log_start(web, ingest, config)
        # What is there now stays to the end: without this, a full collection walks all of it in the
        # middle of some scrape.
        gc.freeze()
        asyncio.run(run_all(listeners, exporter.live))
    logger.info("stopped")


async def run_all(listeners: Sequence[Listener], live: LiveView) -> None:
    """Serve every listener until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        for listener in listeners:
            listener.end()

    def sample_live() -> None:
        # Before the work: whatever that does, the next sample comes.
        loop.call_later(LIVE_INTERVAL_SECONDS, sample_live)
        live.sample(time.monotonic(), time.time())

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    sample_live()
    await asyncio.gather(*(listener.serve_until_told() for listener in listeners))


def _open_ingest(settings: Settings, stack: ExitStack) -> list[socket.socket]:
    sockets = []
    if settings.ingest_socket:
        unix = UnixListener(
            Path(settings.ingest_socket), settings.ingest_socket_mode, "--ingest.socket"
        )
        stack.callback(unix.close)
        sockets.append(unix.socket)
    if settings.ingest_listen_address:
        open_it = open_tcp if settings.ingest_token_file else open_loopback
        tcp = open_it(settings.ingest_listen_address, "--ingest.listen-address")
        stack.callback(tcp.close)
        sockets.append(tcp)
    return sockets


def _configure_logging() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    # It warns of each request that is no HTTP: anybody who can connect could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _log_start(web: socket.socket, ingest: Sequence[socket.socket], config: WebConfig) -> None:
    scheme = "http" if config.tls is None else "https"
    logger.info("rankskew %s serves %s://%s/", __version__, scheme, _name(web))
    for listening in ingest:
        logger.info("snapshots are taken on %s", _name(listening))
    if not ingest:
        logger.warning("ingest is off: no rank can report to this exporter")


def _name(listening: socket.socket) -> str:
    address = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{address}"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

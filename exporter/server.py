"""The exporter process: opens its listeners, serves them in one event loop, and ends cleanly."""

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from exporter.errors import Failures, StartError
from exporter.listeners.handshakes import Handshakes, TlsListener
from exporter.listeners.listener import Listener, Renewal, renew_for_ever
from exporter.listeners.sockets import (
    UnixListener,
    open_loopback,
    open_tcp,
)
from exporter.log import configure
from exporter.settings import Settings
from exporter.web.reload import WatchedConfig
from exporter.wiring import ExporterParts
from rank_probe.version import __version__

logger = logging.getLogger(__name__)

# Takes the time by the monotonic and by the wall clock.
Look = Callable[[float, float], None]
LOOK_SECONDS: Final = 1.0
OPERATOR_SOCKET_MODE: Final = 0o600


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; raises UsageError or StartError if it cannot start."""
    configure(settings.log_level, settings.log_format)
    file = settings.web_config_file
    config = WatchedConfig(Path(file)) if file else None
    is_tls = config is not None and config.current().tls is not None
    exporter = ExporterParts(settings, config)
    with ExitStack() as stack:
        web = open_tcp(settings.web_listen_address, "--web.listen-address")
        handshakes = Handshakes() if is_tls else None
        if handshakes is not None:
            web = TlsListener(web, handshakes)
        stack.callback(web.close)
        unix, ingest = _open_ingest(settings, stack)
        operator = _open_operator(settings, stack)
        listeners = [exporter.web_listener([web], handshakes)]
        renewals = []
        if ingest:
            listeners.append(exporter.ingest_listener(ingest))
        if unix is not None:
            renewals.append(Renewal(unix, listeners[-1]))
        if operator is not None:
            listeners.append(exporter.operator_listener([operator.socket]))
            renewals.append(Renewal(operator, listeners[-1]))
        stack.callback(exporter.stop)
        exporter.start()
        _log_start(web, ingest, settings.ingest_socket, "https" if is_tls else "http")
        # These objects live until the end. Without freeze(), a full collection would walk them all
        # in the middle of some scrape.
        gc.freeze()
        asyncio.run(run_all(listeners, exporter.looks, exporter.failures, renewals))
    logger.info("stopped")


async def run_all(
    listeners: Sequence[Listener],
    looks: Mapping[str, Look],
    failures: Failures,
    renewals: Sequence[Renewal] = (),
) -> None:
    """Serve every listener, and take each of the *looks* once a second, until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        for listener in listeners:
            listener.end()

    def take(name: str) -> None:
        # Scheduled first, so that the time of the work does not add up.
        loop.call_later(LOOK_SECONDS, take, name)
        with failures.caught(name):
            looks[name](time.monotonic(), time.time())

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    for look in looks:
        take(look)
    renewing = asyncio.create_task(renew_for_ever(renewals, failures))
    try:
        await asyncio.gather(*(listener.serve_until_told() for listener in listeners))
    finally:
        renewing.cancel()


def _open_ingest(
    settings: Settings, stack: ExitStack
) -> tuple[UnixListener | None, list[socket.socket]]:
    sockets = []
    unix = None
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
    return unix, sockets


def _open_operator(settings: Settings, stack: ExitStack) -> UnixListener | None:
    if not settings.operator_socket:
        return None
    try:
        unix = UnixListener(
            Path(settings.operator_socket), OPERATOR_SOCKET_MODE, "--operator.socket"
        )
    except StartError as error:
        # Keep watching the node, as an exporter does whose unit predates this socket.
        logger.warning("orders are off: %s", error)
        return None
    stack.callback(unix.close)
    return unix


def _log_start(web: socket.socket, ingest: Sequence[socket.socket], path: str, scheme: str) -> None:
    logger.info("rankskew %s serves %s://%s/", __version__, scheme, _name(web))
    for listening in ingest:
        is_unix = listening.family == socket.AF_UNIX
        logger.info("ingest listens on %s", f"unix:{path}" if is_unix else _name(listening))
    if not ingest:
        logger.warning("ingest is off: no rank can report to this exporter")


def _name(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

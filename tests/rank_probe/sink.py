"""A stand-in for the exporter's ingest: keeps what the ranks push over a Unix socket."""

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Sink:
    """The pushed snapshots, in the order in which they came."""

    def __init__(self) -> None:
        self.snapshots: list[dict[str, Any]] = []
        self.status = 200  # what each push is answered with

    def last(self) -> dict[int, dict[str, Any]]:
        """Return each rank's last snapshot."""
        return {snapshot["rank"]: snapshot for snapshot in self.snapshots}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Ends its open connections too when it closes, as a killed process would."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):  # The other end was first.
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def listening(path: Path) -> Iterator[Sink]:
    """Take snapshots in at the Unix socket *path* while the block runs."""
    sink = Sink()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.snapshots.append(json.loads(body))
            self.send_response(sink.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = _Server(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

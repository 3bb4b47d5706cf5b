"""Stand-ins for an exporter: one keeps what the ranks push, one says what a test wants."""

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

# For pushes to a sink in a process that may be held up; a real exporter's answer is not worth it.
PATIENCE_SECONDS = 20.0
SILENCE = b"nothing"


class Sink:
    """The pushed snapshots in order of arrival; once the sink is closed, in order of creation."""

    def __init__(self) -> None:
        self.snapshots: list[dict[str, Any]] = []
        self.status = 200  # what each push is answered with
        self.answer = b"{}"
        self.says: bytes | None = None  # in place of an answer
        self.token = ""  # what each push must present; empty: nothing
        self.authorizations: list[str | None] = []
        self.endpoint = ""

    def last(self) -> dict[int, dict[str, Any]]:
        """Return each rank's last snapshot."""
        return {snapshot["rank"]: snapshot for snapshot in self.snapshots}


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """On close, ends its open connections too, as a killed process would.

    Before that it receives everything that was sent, because a rank does not wait long for a busy
    machine's answer to its last push.
    """

    disable_nagle_algorithm = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self.process_request(*self.get_request())
        for connection in self._connections:
            with suppress(OSError):  # The other end closed first.
                connection.shutdown(socket.SHUT_RD)  # What is there can still be read.
        super().server_close()  # waits for the threads that do


class _UnixServer(_Server):
    """The same on a Unix socket."""

    address_family = socket.AF_UNIX


def _handler(sink: Sink) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # Head and body are read at once, as an exporter's are.

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if sink.says is not None:
                self.say(sink.says)
                return
            sink.authorizations.append(self.headers["Authorization"])
            if sink.token and self.headers["Authorization"] != f"Bearer {sink.token}":
                self.answer(401, b"{}")
                return
            sink.snapshots.append(json.loads(body))
            self.answer(sink.status, sink.answer)

        def say(self, said: bytes) -> None:
            with suppress(OSError):  # The other end may have heard enough.
                self.rfile.read(1) if said is SILENCE else self.wfile.write(said)
            self.close_connection = True

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            with suppress(BrokenPipeError):  # Nobody waits for it any more.
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def listening(path: Path) -> Iterator[Sink]:
    """Receive snapshots on the Unix socket *path* while the block runs."""
    sink = Sink()
    with _serving(_UnixServer(str(path), _handler(sink)), sink):
        sink.endpoint = f"unix:{path}"
        yield sink
    path.unlink(missing_ok=True)


@contextmanager
def listening_on_loopback() -> Iterator[Sink]:
    """Receive snapshots over TCP, at the sink's `endpoint`, while the block runs."""
    sink = Sink()
    server = _Server(("127.0.0.1", 0), _handler(sink))
    with _serving(server, sink):
        sink.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        yield sink


@contextmanager
def _serving(server: _Server, sink: Sink) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        sink.snapshots.sort(key=itemgetter("heartbeat_timestamp_seconds"))


@contextmanager
def saying(said: bytes) -> Iterator[str]:
    """Answer each post with *said*, or never if that is SILENCE; yields the endpoint."""
    with listening_on_loopback() as sink:
        sink.says = said
        yield sink.endpoint

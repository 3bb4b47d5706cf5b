"""A server that is not an exporter, or not this one: it answers what a test says."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

# By path; whatever else is asked for is answered 404.
Answers = Mapping[str, tuple[int, Any]]


@contextmanager
def answering(answers: Answers, **headers: str) -> Iterator[str]:
    """Answer on a loopback port while the block runs; return its endpoint."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = answers.get(self.path, (404, {"error": "Not Found."}))
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def saying(said: bytes | None) -> Iterator[str]:
    """Say *said* to whoever connects, None for never anything; return the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def say() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                if said is None:
                    over.wait()
                    return
                with suppress(OSError):  # The other end may have heard enough.
                    connection.sendall(said)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # To close with unread bytes is a reset.
                        pass

        thread = threading.Thread(target=say)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()

"""HTTP servers that answer what a test wants."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

# Takes the path and the form; returns status, content type and body. The body of a redirect is
# where it leads.
Answer = tuple[int, str, bytes]


def json_answer(content: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(content).encode()


def anyone(headers: Message) -> Answer | None:
    """Refuse nobody."""
    return None


@contextmanager
def serving(
    answer: Callable[[str, dict[str, str]], Answer],
    refuse: Callable[[Message], Answer | None] = anyone,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Serve what *answer* returns, unless *refuse* answers to the headers; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(refuse(self.headers) or answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._send(refuse(self.headers) or answer(self.path, form))

        def _send(self, said: Answer) -> None:
            status, content_type, body = said
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def exporter_of(document: Any) -> Iterator[str]:
    """Serve *document* as an exporter's live summary."""

    def answer(path: str, form: dict[str, str]) -> Answer:
        if path.partition("?")[0] == "/api/v1/live":
            return json_answer(document)
        return json_answer({"detail": "Not Found"}, 404)

    with serving(answer) as url:
        yield url

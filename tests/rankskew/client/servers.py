"""HTTP servers that answer what a test wants."""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

# Takes the path and the form; returns status, content type and body. The body of a redirect is
# where it leads.
Answer = tuple[int, str, bytes]


class Sent(NamedTuple):
    """A request; *port* is the client's, one for each connection."""

    method: str
    path: str
    headers: Message
    body: bytes
    port: int = 0


def json_answer(content: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(content).encode()


def anyone(headers: Message) -> Answer | None:
    """Refuse nobody."""
    return None


class Server(ThreadingHTTPServer):
    """Says nothing of a client that closes a connection while more might come on it."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(
    answer: Callable[[str, dict[str, str]], Answer],
    refuse: Callable[[Message], Answer | None] = anyone,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Serve what *answer* returns, unless *refuse* answers to the headers; yields the URL."""

    def answered(sent: Sent) -> Answer:
        form = {name: values[0] for name, values in parse_qs(sent.body.decode()).items()}
        return refuse(sent.headers) or answer(sent.path, form)

    with serving_all(answered, tls) as url:
        yield url


@contextmanager
def serving_all(
    answer: Callable[[Sent], Answer], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve what *answer* returns to each request; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # Keeps connections, as all servers do.

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            port = self.client_address[1]
            self._send(answer(Sent(self.command, self.path, self.headers, body, port)))

        do_POST = do_PATCH = do_GET

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

    server = Server(("127.0.0.1", 0), Handler)
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

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

# Status, content type and body. The body of a redirect is where it leads.
Answer = tuple[int, str, bytes]


class Sent(NamedTuple):
    """A request; *port* is the client's, one for each connection."""

    path: str
    form: dict[str, str]
    headers: Message
    port: int


def json_answer(content: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(content).encode()


class Server(ThreadingHTTPServer):
    """Logs nothing when a client closes a connection on which more might come."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(
    answer: Callable[[Sent], Answer | bytes], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve what *answer* returns to each request, bytes as they are; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # Keeps connections, as all servers do.
        disable_nagle_algorithm = True  # Else the body of each answer waits 40 ms.

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            port = self.client_address[1]
            given = answer(Sent(self.path, form, self.headers, port))
            if isinstance(given, bytes):
                self.wfile.write(given)
                self.close_connection = True
                return
            status, content_type, said = given
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            if 300 <= status < 400:
                self.send_header("Location", said.decode())
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_GET

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

    def answer(sent: Sent) -> Answer:
        if sent.path.partition("?")[0] == "/api/v1/live":
            return json_answer(document)
        return json_answer({"detail": "Not Found"}, 404)

    with serving(answer) as url:
        yield url


def protected(sent: Sent) -> Answer:
    """Answer that there is no job, but only to clients with the token and the tenant."""
    who = sent.headers["Authorization"], sent.headers["X-Scope-OrgID"]
    if who != ("Bearer s3cret", "team-a"):
        return 401, "text/plain", b"no org id"
    if sent.path.startswith("/api/v1/live"):
        return json_answer({"jobs": []})
    return json_answer({"status": "success", "data": {"result": [], "groups": []}})

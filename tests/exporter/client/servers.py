"""HTTP servers that answer what a test wants."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

# Takes the path and the form; returns status, content type and body.
Answer = tuple[int, str, bytes]


def json_answer(content: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(content).encode()


@contextmanager
def serving(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[str]:
    """Serve what *answer* returns; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._send(answer(self.path, form))

        def _send(self, said: Answer) -> None:
            status, content_type, body = said
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
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

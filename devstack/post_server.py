"""An HTTP server on a loopback port that hands over what is posted to it."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class PostServer:
    """Calls *take* with the path and the body of each POST, from threads, and answers *status*.

    A context manager: it serves while its block runs.
    """

    def __init__(self, take: Callable[[str, bytes], None], status: int = 200) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                take(self.path, self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing: the terminal is for what was posted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

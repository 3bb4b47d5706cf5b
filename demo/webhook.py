"""The receiver of pages: a local webhook that keeps what Alertmanager sends it."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from demo.process import StackError, wait_for


@dataclass(frozen=True, slots=True)
class Page:
    """One alert of one notification; *received* is on the monotonic clock."""

    status: str  # "firing" or "resolved"
    labels: dict[str, str]
    annotations: dict[str, str]
    received: float = field(default_factory=time.monotonic)

    @property
    def alert(self) -> str:
        """Return the alert's name."""
        return self.labels.get("alertname", "")

    def matches(self, alert: str | None, status: str | None, labels: dict[str, str]) -> bool:
        """Return whether this is *alert* in *status* with at least *labels*; None matches any."""
        return (
            alert in (None, self.alert)
            and status in (None, self.status)
            and labels.items() <= self.labels.items()
        )


def pages_in(body: bytes) -> list[Page]:
    """Return the alerts of a notification (Alertmanager's webhook format, version 4)."""
    notification: dict[str, Any] = json.loads(body)
    return [
        Page(alert["status"], alert["labels"], alert["annotations"])
        for alert in notification["alerts"]
    ]


class Webhook:
    """Listens on a loopback port and collects pages; a context manager."""

    def __init__(self) -> None:
        self._pages: list[Page] = []
        pages = self._pages  # list.extend is atomic: handler threads share it without a lock.

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                pages.extend(pages_in(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing: the terminal is for the pages themselves."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
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

    def pages(
        self, alert: str | None = None, status: str | None = None, **labels: str
    ) -> list[Page]:
        """Return the pages received so far that match, oldest first."""
        return [page for page in list(self._pages) if page.matches(alert, status, labels)]

    def wait_for_alert(
        self, alert: str, seconds: float, status: str = "firing", **labels: str
    ) -> Page:
        """Return the first page that matches; raises StackError if none comes in *seconds*."""

        def first() -> Page | None:
            return next(iter(self.pages(alert, status, **labels)), None)

        page = wait_for(first, seconds)
        if page is None:
            got = [f"{p.status} {p.labels}" for p in self.pages()] or ["nothing"]
            raise StackError(
                f"no {status} {alert} {labels} reached the webhook in {seconds:.0f} s; it got: "
                + "; ".join(got)
            )
        return page

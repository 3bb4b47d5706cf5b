"""The receiver of pages: a local webhook that keeps what Alertmanager sends it."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from devstack.post_server import PostServer
from devstack.process import StackError, wait_for


@dataclass(frozen=True, slots=True)
class ReceivedAlert:
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


def pages_in(body: bytes) -> list[ReceivedAlert]:
    """Return the alerts of a notification (Alertmanager's webhook format, version 4)."""
    notification: dict[str, Any] = json.loads(body)
    return [
        ReceivedAlert(alert["status"], alert["labels"], alert["annotations"])
        for alert in notification["alerts"]
    ]


class Webhook(PostServer):
    """Listens on a loopback port and collects pages; a context manager."""

    def __init__(self) -> None:
        self._pages: list[ReceivedAlert] = []
        # list.extend is atomic: handler threads share it without a lock.
        super().__init__(lambda _, body: self._pages.extend(pages_in(body)))

    def pages(
        self, alert: str | None = None, status: str | None = None, **labels: str
    ) -> list[ReceivedAlert]:
        """Return the pages received so far that match, oldest first."""
        return [page for page in list(self._pages) if page.matches(alert, status, labels)]

    def wait_for_alert(
        self, alert: str, seconds: float, status: str = "firing", **labels: str
    ) -> ReceivedAlert:
        """Return the first page that matches; raises StackError if none comes in *seconds*."""

        def first() -> ReceivedAlert | None:
            return next(iter(self.pages(alert, status, **labels)), None)

        page = wait_for(first, seconds)
        if page is None:
            got = [f"{p.status} {p.labels}" for p in self.pages()] or ["nothing"]
            raise StackError(
                f"no {status} {alert} {labels} reached the webhook in {seconds:.0f} s; it got: "
                + "; ".join(got)
            )
        return page

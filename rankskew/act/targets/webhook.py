"""A webhook: each line of the audit log that holds or frees a node, as it is."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from rankskew.act.targets.target import Line
from rankskew.client.access import Access
from rankskew.client.fetch import base_url, send_json


class WebhookTarget:
    """The program at *url*, reached with *access*; it must bear to be told the same twice."""

    name = "webhook"

    def __init__(self, url: str, access: Access) -> None:
        whole = base_url(url)
        parts = urlsplit(whole)
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._path, self._access = whole.removeprefix(self._server) or "/", access

    def pools(self) -> Mapping[str, frozenset[str]]:
        """Return none: it is the cluster that Prometheus knows that may not become too small."""
        return {}

    def holds(self, name: str) -> None:
        """Say nothing: it is not asked."""

    def hold(self, line: Line) -> None:
        """Post the *line*."""
        send_json(self._server, self._path, dict(line), access=self._access)

    def free(self, line: Line) -> None:
        """Post the *line*."""
        self.hold(line)

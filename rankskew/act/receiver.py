"""Receives Alertmanager's webhook: a hint where to look, from whoever has the token."""

import json
import socket
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from exporter.ingest.token_file import TokenFile
from rankskew.act.evidence import ALERTS
from rankskew.client.fields import mapping, objects, text

PATH: Final = "/alertmanager"
HEALTHY: Final = "/-/healthy"
VERSION: Final = "4"
# Hundreds of alerts with all of their annotations.
LARGEST_BYTES: Final = 2 * 2**20
# For each part of a request that is slow to come.
REQUEST_SECONDS: Final = 10.0

# Takes instances; False if there is no room for them.
Take = Callable[[Sequence[str]], bool]


def claims(body: bytes) -> list[str]:
    """Return the instances on which *body* says that one of ALERTS fires; ValueError tells why."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the body is not JSON; Alertmanager's webhook sends it") from error
    version = mapping(said).get("version")
    if version != VERSION:
        raise ValueError(
            f"the body is no webhook of Alertmanager of version {VERSION}, but of "
            f"{json.dumps(version)[:40]}; this rankskew act does not know it"
        )
    firing = [each for each in objects(said.get("alerts")) if each.get("status") == "firing"]
    labels = [mapping(each.get("labels")) for each in firing]
    found = [text(each.get("instance")) for each in labels if each.get("alertname") in ALERTS]
    return [each for each in found if each]


class Receiver(ThreadingHTTPServer):
    """Serves *listening*, an open socket; *take* gets what a holder of *token* claims.

    Whoever can connect can keep its threads busy; then nothing is done.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, token: TokenFile, take: Take) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.token, self.take = listening, token, take

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    timeout = REQUEST_SECONDS
    server_version, sys_version = "rankskew", ""

    def do_GET(self) -> None:
        if self.path == HEALTHY:
            self._answer(200, {"healthy": True})
        else:
            self._answer(404, {"error": f"this serves POST to {PATH}, and GET of {HEALTHY}"})

    def do_POST(self) -> None:
        said = self.headers.get("Content-Length", "")
        length = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else -1
        if not 0 <= length <= LARGEST_BYTES:
            self._answer(413, {"error": f"send Content-Length, of at most {LARGEST_BYTES} bytes"})
            return
        body = self.rfile.read(length)  # Wanted or not, or the client would not see the answer.
        if not self.server.token.is_shown_in(self.headers.get("Authorization", "")):
            self._answer(401, {"error": "the token is missing or wrong: see --token-file"})
        elif self.path != PATH:
            self.do_GET()
        else:
            self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            instances = claims(body)
        except ValueError as error:
            self._answer(400, {"error": f"{error}."})
            return
        if self.server.take(instances):
            self._answer(200, {"nodes": len(instances)})
        else:
            self._answer(503, {"error": "too many wait already; send it again"})

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        content = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: anyone who can connect could fill the disk."""

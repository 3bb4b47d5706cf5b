"""Where the exporter listens, a Unix socket or loopback, and how to ask it something over HTTP."""

import http.client
import json
import logging
import socket
from dataclasses import dataclass
from typing import Any, Final

from rank_probe.process.small_files import FILE_BYTES, content

log = logging.getLogger("rank_probe")

DEFAULT_ENDPOINT: Final = "unix:/run/rankskew/exporter.sock"
# The exporter is on this node and answers in a millisecond; longer means it is in trouble.
TIMEOUT_SECONDS: Final = 0.5
# More than any answer of an exporter: the longest lists the ranks of a node.
LARGEST_ANSWER_BYTES: Final = 2**20


class NoEndpoint(ValueError):
    """The value is not a valid endpoint; the message says what is."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        self.sock = connection


def socket_path(endpoint: str) -> str | None:
    """Return the path in *endpoint*; None if it is not a Unix socket."""
    scheme, _, rest = endpoint.partition(":")
    return "/" + rest.lstrip("/") if scheme == "unix" and rest.startswith("/") else None


def open_connection(
    endpoint: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> http.client.HTTPConnection:
    """Return an unconnected HTTP connection to *endpoint*.

    *endpoint* is `unix:/path/to.sock` or `http://127.0.0.1:PORT`; NoEndpoint for anything else.
    """
    if (path := socket_path(endpoint)) is not None:
        return _UnixConnection(path, timeout_seconds)
    scheme, _, rest = endpoint.partition(":")
    host, _, port = rest.removeprefix("//").rstrip("/").rpartition(":")
    if scheme == "http" and host and port.isdecimal():
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_seconds)
    raise NoEndpoint(
        f"RANKSKEW_EXPORTER is {endpoint!r}; it must be unix:/path/to.sock or http://127.0.0.1:PORT"
    )


class Bearer:
    """The Authorization header with the token in the file *path*, which is never logged.

    There is no header without a *path*, or over a Unix socket, which needs no token.
    """

    def __init__(self, path: str, endpoint: str) -> None:
        self._path = "" if endpoint.startswith("unix:") else path
        self._complained = False
        self.headers: dict[str, str] = {}

    def read(self) -> bool:
        """Read the token file; return whether the header has changed."""
        before = self.headers
        try:
            found = content(self._path, FILE_BYTES, follows_links=True) if self._path else b""
            token = found.decode().strip()
        except (OSError, ValueError) as error:
            # A ValueError would quote the token that it cannot decode.
            self._complain(str(error) if isinstance(error, OSError) else "it is not text")
            return False
        # http.client would reject any other token with an error that quotes it.
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            self._complain("it must hold one token: printable ASCII without spaces")
            return False
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.headers != before

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning("rank_probe cannot use RANKSKEW_TOKEN_FILE=%s: %s", self._path, why)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response: its status, the server's name for itself, and the body."""

    status: int
    server: str
    body: bytes

    def json_object(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one if it is anything else."""
        return json_object(self.body)


def ask(
    endpoint: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    token_file: str = "",
    timeout_seconds: float,
) -> Reply:
    """Send one request to *endpoint* on a connection of its own, and return the response.

    Raises NoEndpoint, OSError if nothing answers, and HTTPException if the answer is not HTTP.
    """
    connection = open_connection(endpoint, timeout_seconds)
    bearer = Bearer(token_file, endpoint)
    bearer.read()
    try:
        connection.request(
            method, path, body, {"Content-Type": "application/json", **bearer.headers}
        )
        response = connection.getresponse()
        server = response.headers.get("Server", "")
        return Reply(response.status, server, response.read(LARGEST_ANSWER_BYTES))
    finally:
        connection.close()


def json_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in *text*; an empty one if it is anything else."""
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}

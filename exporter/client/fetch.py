"""Asks an HTTP server for JSON; whatever goes wrong is one sentence for a person."""

import http.client
import json
import netrc
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from exporter.errors import UsageError, reason

# A person waits, and the next attempt is seconds away.
TIMEOUT_SECONDS: Final = 4.0
# 16,384 ranks are 40 MB.
LARGEST_ANSWER_BYTES: Final = 128 * 2**20
# A proxy cannot reach what listens on this machine only.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Trouble(Exception):
    """A source that cannot be read now; the message is a sentence, and it may work next time."""


def base_url(text: str) -> str:
    """Return the URL in *text*, with http:// if it has no scheme; raises UsageError."""
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or any(char.isspace() or not char.isprintable() for char in url):
        raise UsageError(f"{text!r} is not a URL such as http://node1:9917")
    if parts.username is not None:
        raise UsageError(
            "a password in a URL is visible to all users of this machine; put it in ~/.netrc"
        )
    return url


def get_json(
    server: str,
    path: str,
    query: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
) -> Any:
    """Return the JSON at *path* of *server*, None if that is no JSON; without an answer, Trouble.

    With *query* it is posted, as expressions may be long. A status of 4xx with JSON is an answer.
    The server has *timeout_seconds*, or TIMEOUT_SECONDS.
    """
    patience = TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    body = urlencode(query).encode() if query else None
    request = urllib.request.Request(server + path, body, {"Accept": "application/json"})
    for name, value in _login(server).items():
        request.add_unredirected_header(name, value)  # Another host must not get the password.
    try:
        with _opener(server).open(request, timeout=patience) as response:
            return _parse(response.read(LARGEST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        return _refused(error, server)
    except (OSError, http.client.HTTPException) as error:
        raise Trouble(f"{server} does not answer: {_why(error, patience)}.") from error


def _opener(url: str) -> urllib.request.OpenerDirector:
    if urlsplit(url).hostname in LOOPBACK:
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _login(url: str) -> dict[str, str]:
    """Return the header with the user's password for this host in ~/.netrc, if there is one."""
    try:
        login = netrc.netrc().hosts.get(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return {}
    if login is None:
        return {}
    return {"Authorization": f"Basic {b64encode(f'{login[0]}:{login[2]}'.encode()).decode()}"}


def _refused(error: urllib.error.HTTPError, server: str) -> Any:
    with error:
        if error.code in (401, 403):
            raise Trouble(
                f"{server} refuses us ({error.code} {error.reason}): put user and password "
                "into ~/.netrc."
            ) from error
        if error.code >= 500:
            raise Trouble(f"{server} answers {error.code} {error.reason}.") from error
        return _parse(error.read(LARGEST_ANSWER_BYTES))


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _why(error: OSError | http.client.HTTPException, timeout_seconds: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout_seconds:.0f} s"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE names yours"
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS; try http:// instead of https://"
    if isinstance(cause, socket.gaierror):
        return "its name is not known"
    if isinstance(cause, OSError):
        return reason(cause)
    return "its answer is not HTTP; a server with TLS needs https://"

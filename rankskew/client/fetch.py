"""Asks an HTTP server for JSON; every failure becomes one sentence for a person."""

import json
import netrc
import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, ProxyError, ResponseError

from exporter.errors import UsageError, reason
from rank_probe.wire.text import printable
from rankskew.client.http_config import (
    AUTHORIZATION,
    HttpConfig,
    basic,
    checked_header,
    read_http_config,
)

# A person waits, and the next attempt is seconds away.
TIMEOUT_SECONDS: Final = 4.0
# 16,384 ranks are 40 MB.
LARGEST_ANSWER_BYTES: Final = 128 * 2**20
MOST_REDIRECTS: Final = 5
# A proxy cannot reach what listens on this machine only.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
TIMEOUTS: Final = (TimeoutError, urllib3.exceptions.ReadTimeoutError)


class Trouble(Exception):
    """A source cannot be read now, but perhaps next time; the message is a sentence."""


class _Refused(Trouble):
    """The server refuses our token or password, or demands one."""


# ---- How servers are reached ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """A *config_file* in the format of promtool's --http.config.file, and further *headers*.

    *pools* are the open connections to each server, with the headers that were read for them.
    """

    config_file: Path | None = None
    headers: Sequence[tuple[str, str]] = ()
    pools: dict[str, urllib3.PoolManager] = field(default_factory=dict, init=False, compare=False)

    def read(self) -> HttpConfig:
        """Return the file's current settings with the headers; raises UsageError."""
        more = [checked_header(*each) for each in self.headers]
        config = HttpConfig() if self.config_file is None else read_http_config(self.config_file)
        return replace(config, headers=[*config.headers, *more])


ANYONE: Final = Access()


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
            "a password in a URL is visible to all users of this machine; put it in ~/.netrc, or "
            "in the file of --http.config.file"
        )
    return url


# ---- Asking --------------------------------------------------------------------------------------


def get_json(
    server: str,
    path: str,
    query: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
    access: Access = ANYONE,
) -> Any:
    """Return the JSON at *path* of *server*, None if it is no JSON; raises Trouble if unanswered.

    Characters in it that could move a terminal's cursor become question marks. A *query* is posted,
    since expressions may be long. A status of 4xx with JSON is an answer. The server has
    *timeout_seconds*, or TIMEOUT_SECONDS. A redirect to another host passes on nothing of
    *access*.
    """
    patience = TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds

    def exchange(pool: urllib3.PoolManager) -> Any:
        found = _exchange(pool, server, path, query, patience)
        if access is not ANYONE:  # ANYONE is shared, so it keeps no pool.
            access.pools[server] = pool
        return found

    try:
        if (kept := access.pools.pop(server, None)) is not None:
            try:
                return exchange(kept)
            except _Refused:
                pass  # The token may have been renewed: read it again.
            except HTTPError as error:
                if any(isinstance(each, TIMEOUTS) for each in _causes(error)):
                    raise
        return exchange(_pool(server, access))
    except HTTPError as error:
        raise Trouble(f"{server} does not answer: {_why(error, patience)}.") from error
    except UnicodeEncodeError as error:
        raise Trouble(f"{server} cannot be asked: a name given here is not UTF-8.") from error


def _pool(server: str, access: Access) -> urllib3.PoolManager:
    try:
        config = access.read()
    except UsageError as error:
        raise Trouble(f"{error}.") from error
    headers = urllib3.HTTPHeaderDict([("Accept", "application/json"), *config.headers])
    with suppress(OSError, netrc.NetrcParseError):
        login = netrc.netrc().hosts.get(urlsplit(server).hostname or "")
        if login is not None and AUTHORIZATION not in headers:
            headers[AUTHORIZATION] = basic(login[0], login[2])
    tls: dict[str, Any] = {"ssl_context": config.tls, "server_hostname": config.server_name}
    proxy = _proxy(server)
    if proxy is None:
        return urllib3.PoolManager(headers=headers, **tls)
    user = unquote(urllib3.util.parse_url(proxy).auth or "")
    login_there = {"Proxy-Authorization": basic(*user.partition(":")[::2])} if user else {}
    return urllib3.ProxyManager(proxy, headers=headers, proxy_headers=login_there, **tls)


def _proxy(server: str) -> str | None:
    """Return the proxy that the environment names for *server*."""
    parts = urlsplit(server)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or parts.hostname in LOOPBACK or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _exchange(
    pool: urllib3.PoolManager,
    server: str,
    path: str,
    query: Mapping[str, str] | None,
    patience: float,
) -> Any:
    form: dict[str, Any] = {"fields": query, "encode_multipart": False} if query else {}
    answer = pool.request(
        "POST" if query else "GET",
        server + path,
        timeout=patience,
        retries=urllib3.Retry(
            connect=0,
            read=0,
            other=0,
            redirect=MOST_REDIRECTS,
            remove_headers_on_redirect={*pool.headers} - {"Accept"},
        ),
        preload_content=False,
        decode_content=False,
        **form,
    )
    with answer:
        return _answered(answer, server, names_us=AUTHORIZATION in pool.headers)


def _answered(answer: urllib3.BaseHTTPResponse, server: str, *, names_us: bool) -> Any:
    said = f"{answer.status} {printable(answer.reason or '')}".rstrip()
    if answer.status in (401, 403):
        what = "our token or password" if names_us else "us"
        raise _Refused(
            f"{server} refuses {what} ({said}): give a token or password with --http.config.file "
            "or ~/.netrc, and the tenant of a Mimir with --header 'X-Scope-OrgID: TENANT'."
        )
    if answer.status >= 500:
        raise Trouble(f"{server} answers {said}.")
    try:
        return _harmless(json.loads(answer.read(LARGEST_ANSWER_BYTES)))
    except (ValueError, RecursionError):
        return None


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else printable(value)
    if isinstance(value, list):
        return [_harmless(each) for each in value]
    if isinstance(value, dict):
        return {_harmless(name): _harmless(each) for name, each in value.items()}
    return value


# ---- Why there is no answer ----------------------------------------------------------------------


def _why(error: BaseException, patience_seconds: float) -> str:
    causes = list(_causes(error))
    through = "its proxy: " if any(isinstance(each, ProxyError) for each in causes) else ""
    return through + next(
        (why for each in reversed(causes) if (why := _known(each, patience_seconds))),
        "its answer is not HTTP; a server with TLS needs https://",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and what it was raised for, the first cause last."""
    while error is not None:
        yield error
        inner = getattr(error, "reason", None)
        known = inner if isinstance(inner, BaseException) else None
        error = known or error.__cause__ or error.__context__


def _known(cause: BaseException, patience_seconds: float) -> str | None:
    match cause:
        case TimeoutError() | urllib3.exceptions.ReadTimeoutError():
            return f"no answer within {patience_seconds:.0f} s"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE or "
                "tls_config in --http.config.file names yours"
            )
        case ssl.SSLError():
            return "it does not speak TLS; try http:// instead of https://"
        case socket.gaierror() | LocationParseError():
            return "its name is not known"
        case ResponseError():
            return "it redirects us again and again"
        case OSError():
            return reason(cause)
    return None

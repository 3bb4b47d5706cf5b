"""Asks an HTTP server for JSON; whatever goes wrong is one sentence for a person."""

import json
import netrc
import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import LocationParseError, ProxyError, ResponseError

from exporter.errors import UsageError, reason
from rankskew.client.access import ANYONE, Access, Session
from rankskew.client.fields import text
from rankskew.client.headers import AUTHORIZATION, HttpConfig, basic

# A person waits, and the next attempt is seconds away.
TIMEOUT_SECONDS: Final = 4.0
# 16,384 ranks are 40 MB.
LARGEST_ANSWER_BYTES: Final = 128 * 2**20
MOST_REDIRECTS: Final = 5
# A proxy cannot reach what listens on this machine only.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
REFUSALS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
TIMEOUTS: Final = (TimeoutError, urllib3.exceptions.ReadTimeoutError)


class Trouble(Exception):
    """A source that cannot be read now; the message is a sentence, and it may work next time."""


class _Refused(Trouble):
    """The server wants another token or password, or any."""


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


def get_json(
    server: str,
    path: str,
    query: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
    access: Access = ANYONE,
) -> Any:
    """Return the JSON at *path* of *server*, None if that is no JSON; without an answer, Trouble.

    With *query* it is posted, as expressions may be long. A status of 4xx with JSON is an answer.
    The server has *timeout_seconds*, or TIMEOUT_SECONDS. Another host, to which it redirects, gets
    nothing of *access*.
    """
    request = Request("GET")
    if query:
        request = Request("POST", urlencode(query).encode(), "application/x-www-form-urlencoded")
    return _answer(server, path, request, timeout_seconds, access)[1]


def send_json(
    server: str,
    path: str,
    document: Any,
    method: str = "POST",
    content_type: str = "application/json",
    access: Access = ANYONE,
) -> Any:
    """Send *document* to *path* of *server* and return its JSON, None if it is none.

    Raises Trouble, with what the server says, for each status but 2xx; a redirect is not followed.
    """
    body = json.dumps(document).encode()
    request = Request(method, body, content_type, redirects=False)
    status, said = _answer(server, path, request, None, access)
    if not 200 <= status < 300:
        why = text(said.get("message")) if isinstance(said, dict) else None
        raise Trouble(
            f"{server} answers {status} to {method} {path}: {why or 'it gives no reason'}."
        )
    return said


class Request(NamedTuple):
    """What is sent; a *body* has a *content_type*."""

    method: str
    body: bytes | None = None
    content_type: str = ""
    redirects: bool = True


def _answer(
    server: str, path: str, request: Request, timeout_seconds: float | None, access: Access
) -> tuple[int, Any]:
    patience = TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    try:
        if (kept := access.sessions.pop(server, None)) is not None:
            try:
                return _exchange(kept, server, path, request, patience, access)
            except _Refused:
                pass  # A token is renewed now and then.
            except urllib3.exceptions.HTTPError as error:
                if any(isinstance(each, TIMEOUTS) for each in _causes(error)):
                    raise
        config = _with_login(_config(access), server)
        new = Session(config, _pool(server, config))
        return _exchange(new, server, path, request, patience, access)
    except urllib3.exceptions.HTTPError as error:
        raise Trouble(f"{server} does not answer: {_why(error, patience)}.") from error


def _exchange(
    session: Session, server: str, path: str, request: Request, patience: float, access: Access
) -> tuple[int, Any]:
    """Return the status and the answer, and keep *session* for the next."""
    answer = _ask(session.pool, server + path, request, patience, session.config)
    try:
        found = answer.status, _answered(answer, server, session.config.names_us)
    finally:
        answer.close()
    if access is not ANYONE:  # That is nobody's run.
        access.sessions[server] = session
    return found


def _config(access: Access) -> HttpConfig:
    try:
        return access.read()
    except UsageError as error:
        raise Trouble(f"{error}.") from error


def _with_login(config: HttpConfig, url: str) -> HttpConfig:
    """Add the user's password for this host in ~/.netrc, if there is one, and no other is given."""
    try:
        login = netrc.netrc().hosts.get(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        login = None
    if login is None or config.names_us:
        return config
    ours = AUTHORIZATION, basic(login[0], login[2])
    return HttpConfig([*config.headers, ours], config.tls, config.server_name)


def _pool(url: str, config: HttpConfig) -> urllib3.PoolManager:
    proxy = _proxy(url)
    if proxy is None:
        return urllib3.PoolManager(ssl_context=config.tls, server_hostname=config.server_name)
    login = urllib3.util.parse_url(proxy).auth
    return urllib3.ProxyManager(
        proxy,
        proxy_headers=urllib3.make_headers(proxy_basic_auth=login) if login else None,
        ssl_context=config.tls,
        server_hostname=config.server_name,
    )


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for *url*."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or parts.hostname in LOOPBACK or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _ask(
    pool: urllib3.PoolManager,
    url: str,
    request: Request,
    patience_seconds: float,
    config: HttpConfig,
) -> urllib3.BaseHTTPResponse:
    headers = urllib3.HTTPHeaderDict({"Accept": "application/json"})
    if request.content_type:
        headers["Content-Type"] = request.content_type
    for name, value in config.headers:
        headers.add(name, value)
    return pool.request(
        request.method,
        url,
        body=request.body,
        redirect=request.redirects,
        headers=headers,
        timeout=patience_seconds,
        retries=urllib3.Retry(
            connect=0,
            read=0,
            other=0,
            redirect=MOST_REDIRECTS,
            remove_headers_on_redirect=[name for name, _ in config.headers],
        ),
        preload_content=False,
        decode_content=False,
    )


def _answered(answer: urllib3.BaseHTTPResponse, server: str, names_us: bool) -> Any:
    said = f"{answer.status} {text(answer.reason) or ''}".rstrip()
    if answer.status in REFUSALS and names_us:
        raise _Refused(f"{server} refuses our token or password ({said}).")
    if answer.status in REFUSALS:
        raise _Refused(
            f"{server} refuses us ({said}): give a token or password with --http.config.file or "
            "~/.netrc, and the tenant of a Mimir with --header 'X-Scope-OrgID: TENANT'."
        )
    if answer.status >= 500:
        raise Trouble(f"{server} answers {said}.")
    try:
        return json.loads(answer.read(LARGEST_ANSWER_BYTES))
    except (ValueError, RecursionError):
        return None


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
        reason = getattr(error, "reason", None)
        known = reason if isinstance(reason, BaseException) else None
        error = known or error.__cause__ or error.__context__


def _known(cause: BaseException, patience_seconds: float) -> str | None:
    if isinstance(cause, TIMEOUTS):
        return f"no answer within {patience_seconds:.0f} s"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE or tls_config "
            "in --http.config.file names yours"
        )
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS; try http:// instead of https://"
    if isinstance(cause, socket.gaierror | LocationParseError):
        return "its name is not known"
    if isinstance(cause, ResponseError):
        return "it redirects us again and again"
    if isinstance(cause, OSError):
        return reason(cause)
    return None

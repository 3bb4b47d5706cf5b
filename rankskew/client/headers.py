"""The headers of a request, and the TLS that it is sent with."""

import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

from exporter.errors import UsageError

AUTHORIZATION: Final = "Authorization"
# What the connection itself says, and what has a place of its own.
RESERVED: Final = {
    *("authorization", "proxy-authorization", "cookie", "host", "connection"),
    *("transfer-encoding", "accept-encoding", "content-encoding"),
    *("content-length", "content-type"),
}


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The *headers* of each request, and *tls*, None for what the system trusts.

    The server's certificate must be for *server_name*, None for the name in the URL.
    """

    headers: list[tuple[str, str]] = field(default_factory=list, repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    @property
    def names_us(self) -> bool:
        """Say whether a token or a password is among the headers."""
        return any(name == AUTHORIZATION for name, _ in self.headers)


def basic(user: str, password: str) -> str:
    """Return the header that gives *user* and *password*."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def checked_header(name: str, value: str) -> tuple[str, str]:
    """Return both if they can be sent; raises UsageError, which does not repeat the value."""
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{name!r} is not the name of a header")
    if name.lower() in RESERVED:
        raise UsageError(
            f"the header {name} cannot be set: tokens and passwords have their own "
            "sections in --http.config.file"
        )
    return name, one_line(value, f"the header {name}")


def one_line(value: str, what: str) -> str:
    """Return *value*; raises UsageError, which does not repeat it, if it would break a header."""
    if not value.isascii() or not value.isprintable():
        raise UsageError(f"{what} must be one line of ASCII text")
    return value

"""How the servers that a command asks are reached: what proves who we are, and whom we trust."""

import ssl
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Access:
    """A *config_file* in the format of promtool's --http.config.file, and further *headers*."""

    config_file: Path | None = None
    headers: Sequence[tuple[str, str]] = ()

    def read(self) -> HttpConfig:
        """Return what they say now, as tokens are renewed; raises UsageError."""
        more = [checked_header(*each) for each in self.headers]
        if self.config_file is None:
            return HttpConfig(more)
        # Here: few need pydantic, which takes as long to import as the rest of a command.
        from exporter.client.http_config import read_http_config

        config = read_http_config(self.config_file)
        return replace(config, headers=[*config.headers, *more])


ANYONE: Final = Access()


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

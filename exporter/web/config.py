"""The web configuration file, in the format of the Prometheus exporter toolkit."""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from exporter.errors import UsageError, reason
from exporter.web import tls

FLAG: Final = "--web.config.file"
SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users")
# `http2` changes nothing here (this server speaks HTTP/1.1), but shared files have it.
HTTP_KEYS: Final = ("headers", "http2")
HEADERS: Final = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
REFUSED_SECTIONS: Final = {"rate_limit": "limit requests in a proxy"}
# The costs, 4 to 31, are those that bcrypt can compute.
BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How the web listener is protected. *users* maps a name to its bcrypt hash."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WebConfigReading:
    """What was found at one reading: the settings, all *problems* with them, and its *files*.

    *config* is to be used only if there are no problems.
    """

    config: WebConfig
    problems: tuple[str, ...]
    files: tuple[Path, ...]


def read_web_config(path: Path) -> WebConfigReading:
    """Read the file at *path*; relative paths in it are relative to its directory.

    The problems are one line each, and name the flag.
    """
    import yaml  # Here: most exporters have no such file, and it takes 1 MiB.

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        return _unread(path, f"cannot read {path}: {reason(error)}")
    except UnicodeDecodeError:
        return _unread(path, f"{path} is not UTF-8 text")
    except yaml.YAMLError as error:
        return _unread(path, f"{path} is not YAML: {' '.join(str(error).split())}")
    collected = _Parts()
    config = _web_config(content, path.parent, collected)
    options = content.get("tls_server_config") if isinstance(content, dict) else None
    return WebConfigReading(
        config,
        tuple(f"{FLAG}: {path}: {problem}" for problem in collected.problems),
        (path, *tls.named_files(options, path.parent)),
    )


def _unread(path: Path, problem: str) -> WebConfigReading:
    return WebConfigReading(WebConfig(), (f"{FLAG}: {problem}",), (path,))


class _Parts:
    """Reads one part after another, and keeps what is wrong with each."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, default: Part, make: Callable[..., Part], *arguments: Any) -> Part:
        """Return what *make* returns for *arguments*, or *default* after a UsageError."""
        try:
            return make(*arguments)
        except UsageError as error:
            self.problems.append(str(error))
            return default


def _web_config(content: Any, directory: Path, parts: _Parts) -> WebConfig:
    nothing: dict[str, Any] = {}
    sections = parts.read(
        nothing,
        _mapping,
        {} if content is None else content,
        "the file",
        SECTIONS,
        REFUSED_SECTIONS,
    )
    options = sections.get("tls_server_config")
    context = None if options is None else parts.read(None, _tls, options, directory)
    http = parts.read(
        nothing, _mapping, sections.get("http_server_config") or {}, "http_server_config", HTTP_KEYS
    )
    headers = parts.read(
        nothing, _mapping, http.get("headers") or {}, "http_server_config.headers", HEADERS
    )
    users = parts.read(
        nothing, _mapping, sections.get("basic_auth_users") or {}, "basic_auth_users", None
    )
    return WebConfig(
        context,
        {name: parts.read(b"", _bcrypt_hash, name, value) for name, value in users.items()},
        {name: parts.read("", _header, name, value) for name, value in headers.items()},
    )


def _tls(options: Any, directory: Path) -> ssl.SSLContext:
    return tls.tls_context(_mapping(options, "tls_server_config", tls.KEYS, tls.REFUSED), directory)


def _mapping(
    value: Any, where: str, keys: tuple[str, ...] | None, refused: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return *value* if it is a mapping with text keys, all of them in *keys* if given."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where} must be a mapping with text keys")
    for key in value:
        if key in (refused or {}):
            raise UsageError(f"{where}: {key} is not supported; {(refused or {})[key]}")
        if keys is not None and key not in keys:
            raise UsageError(f"{where} has an unknown key {key!r}; known: {', '.join(keys)}")
    return value


def _bcrypt_hash(name: str, value: Any) -> bytes:
    if not isinstance(value, str) or not BCRYPT.fullmatch(value):
        raise UsageError(
            f"the password of user {name!r} is not a bcrypt hash; see htpasswd -nBC 10"
        )
    return value.encode()


def _header(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise UsageError(f"header {name} must be one line of ASCII text")
    return value

"""The web configuration file, in the format of the Prometheus exporter toolkit."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from exporter.errors import UsageError, reason

FLAG: Final = "--web.config.file"
SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users")
TLS_KEYS: Final = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")
# `http2` changes nothing here (this server speaks HTTP/1.1), but shared files have it.
HTTP_KEYS: Final = ("headers", "http2")
HEADERS: Final = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# The toolkit's other two ask for a certificate without verifying it, which Python cannot.
CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
BCRYPT_PREFIXES: Final = ("$2a$", "$2b$", "$2y$")

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How the web listener is protected. *users* maps a name to its bcrypt hash."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def load_web_config(path: Path) -> WebConfig:
    """Read the file at *path*; raises UsageError, one line, for whatever this server cannot do.

    It is read once, at the start. Relative paths in it are relative to its directory.
    """
    import yaml  # Here: most exporters have no such file, and it takes 1 MiB.

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"{FLAG}: cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{FLAG}: {path} is not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{FLAG}: {path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return _web_config(content, path.parent)
    except UsageError as error:
        raise UsageError(f"{FLAG}: {path}: {error}") from error


def _web_config(content: Any, directory: Path) -> WebConfig:
    sections = _mapping({} if content is None else content, "the file", SECTIONS)
    tls = None
    if sections.get("tls_server_config") is not None:
        tls = _tls(
            _mapping(sections["tls_server_config"], "tls_server_config", TLS_KEYS), directory
        )
    http = _mapping(sections.get("http_server_config") or {}, "http_server_config", HTTP_KEYS)
    headers = _mapping(http.get("headers") or {}, "http_server_config.headers", HEADERS)
    users = _mapping(sections.get("basic_auth_users") or {}, "basic_auth_users", None)
    return WebConfig(
        tls,
        {name: _bcrypt_hash(name, value) for name, value in users.items()},
        {name: _header(name, value) for name, value in headers.items()},
    )


def _mapping(value: Any, where: str, keys: tuple[str, ...] | None) -> dict[str, Any]:
    """Return *value* if it is a mapping with text keys, all of them in *keys* if given."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where} must be a mapping with text keys")
    unknown = [key for key in value if keys is not None and key not in keys]
    if unknown:
        raise UsageError(
            f"{where} has an unknown key {unknown[0]!r}; known: {', '.join(keys or ())}"
        )
    return value


def _tls(options: dict[str, Any], directory: Path) -> ssl.SSLContext:
    client_auth = options.get("client_auth_type") or "NoClientCert"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _one_of(
        VERSIONS, options.get("min_version") or "TLS12", "min_version"
    )
    verify_mode = _one_of(CLIENT_AUTH, client_auth, "client_auth_type")
    certificate, key = (_path(options, name, directory) for name in ("cert_file", "key_file"))
    if certificate is None or key is None:
        raise UsageError("tls_server_config needs both cert_file and key_file")
    authority = _path(options, "client_ca_file", directory)
    if (authority is None) != (verify_mode is ssl.CERT_NONE):
        raise UsageError("client_ca_file and a verifying client_auth_type need each other")
    try:
        # An empty password makes an encrypted key an error instead of a prompt.
        context.load_cert_chain(certificate, key, password="")
        if authority is not None:
            context.load_verify_locations(authority)
    except OSError as error:
        raise UsageError(
            f"cannot load {certificate}, {key} or client_ca_file: {reason(error)}"
        ) from error
    context.verify_mode = verify_mode
    return context


def _one_of(known: Mapping[str, Choice], value: Any, where: str) -> Choice:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{where} {value!r} is not supported; use one of {', '.join(known)}")
    return known[value]


def _path(options: dict[str, Any], name: str, directory: Path) -> Path | None:
    value = options.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a path")
    return directory / value


def _bcrypt_hash(name: str, value: Any) -> bytes:
    if not isinstance(value, str) or len(value) != 60 or not value.startswith(BCRYPT_PREFIXES):
        raise UsageError(
            f"the password of user {name!r} is not a bcrypt hash; see htpasswd -nBC 10"
        )
    return value.encode()


def _header(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise UsageError(f"header {name} must be one line of ASCII text")
    return value

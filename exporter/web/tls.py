"""The section tls_server_config of the web configuration file, as an SSL context."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from exporter.errors import UsageError, reason

# What an older client may speak is broken; a client without TLS 1.2 is older than Prometheus.
VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
BROKEN_VERSIONS: Final = ("TLS10", "TLS11")
# The toolkit's other two ask for a certificate without verifying it, which Python cannot.
CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# Go's names of the suites of TLS 1.2 with forward secrecy and AEAD, and OpenSSL's.
CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
FILE_KEYS: Final = ("cert_file", "key_file", "client_ca_file")
KEYS: Final = (
    *FILE_KEYS,
    "client_auth_type",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
)
# Keys of the toolkit that would be ignored here, and what to do instead.
REFUSED: Final = {
    "cert": "put it into a file, and name that in cert_file",
    "key": "put it into a file, and name that in key_file",
    "client_ca": "put it into a file, and name that in client_ca_file",
    "client_allowed_sans": "give the clients a CA of their own in client_ca_file",
    "curve_preferences": "remove it: OpenSSL prefers X25519, then P-256, as Go does",
}

Choice = TypeVar("Choice")


def tls_context(options: Mapping[str, Any], directory: Path) -> ssl.SSLContext:
    """Return the context for *options*; its paths are relative to *directory*.

    Raises UsageError for what is wrong or cannot be done.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, options)
    _set_ciphers(context, options)
    verify_mode = _one_of(
        CLIENT_AUTH, options.get("client_auth_type") or "NoClientCert", "client_auth_type"
    )
    certificate, key, authority = (_path(options, name, directory) for name in FILE_KEYS)
    if certificate is None or key is None:
        raise UsageError("tls_server_config needs both cert_file and key_file")
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


def named_files(options: Any, directory: Path) -> list[Path]:
    """Return the files that *options* name, whatever else is wrong with them."""
    if not isinstance(options, dict):
        return []
    named = [options.get(key) for key in FILE_KEYS]
    return [directory / name for name in named if isinstance(name, str) and name]


def _set_versions(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    least = options.get("min_version") or "TLS12"
    if least in BROKEN_VERSIONS:
        raise UsageError(
            f"min_version {least!r} is not supported, because TLS 1.0 and 1.1 are broken; "
            "use TLS12 or TLS13"
        )
    context.minimum_version = _one_of(VERSIONS, least, "min_version")
    most = options.get("max_version") or "TLS13"
    context.maximum_version = _one_of(VERSIONS, most, "max_version")
    if context.maximum_version < context.minimum_version:
        raise UsageError(f"max_version {most} is below min_version {least}")


def _set_ciphers(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    names = options.get("cipher_suites") or []
    if not isinstance(names, list):
        raise UsageError("cipher_suites must be a list")
    suites = [_one_of(CIPHERS, name, "cipher_suites:") for name in names]
    if suites:
        context.set_ciphers(":".join(suites))
    prefer_own = options.get("prefer_server_cipher_suites", True)
    if not isinstance(prefer_own, bool):
        raise UsageError("prefer_server_cipher_suites must be true or false")
    if prefer_own:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE


def _one_of(known: Mapping[str, Choice], value: Any, where: str) -> Choice:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"{where} {value!r} is not supported; use one of {', '.join(known)}")
    return known[value]


def _path(options: Mapping[str, Any], name: str, directory: Path) -> Path | None:
    value = options.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a path")
    return directory / value

"""The headers of a request, and the TLS that it is sent with: promtool's --http.config.file."""

import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import urllib3
import yaml
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from urllib3.exceptions import InsecureRequestWarning

from exporter.errors import UsageError, reason, text_of

AUTHORIZATION: Final = "Authorization"
# Headers that the connection sets itself, and those with a section of their own.
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


# ---- The file ------------------------------------------------------------------------------------


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Authorization(_Section):
    type: str = "Bearer"
    credentials: SecretStr | None = None
    credentials_file: str | None = None


class _BasicAuth(_Section):
    username: str
    password: SecretStr | None = None
    password_file: str | None = None


class _Tls(_Section):
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


class _Header(_Section):
    values: list[str] = []
    secrets: list[SecretStr] = []
    files: list[str] = []


class _File(_Section):
    authorization: _Authorization | None = None
    basic_auth: _BasicAuth | None = None
    tls_config: _Tls | None = None
    http_headers: dict[str, _Header] = {}


def read_http_config(path: Path) -> HttpConfig:
    """Return what the file at *path* says now; relative paths in it are relative to its directory.

    Raises UsageError, in a sentence that repeats no secret.
    """
    try:
        return _config(_parsed(path), path.parent)
    except UsageError as error:  # Its cause may show a secret.
        raise UsageError(f"--http.config.file: {path}: {error}") from None


def _parsed(path: Path) -> _File:
    try:
        content = yaml.safe_load(text_of(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # Its text would show the line.
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise UsageError(f"it is not YAML{where}") from error
    try:
        return _File.model_validate({} if content is None else content)
    except ValidationError as error:
        raise UsageError(_sentence(error.errors(include_input=False)[0])) from error


def _sentence(error: ErrorDetails) -> str:
    where = ".".join(ascii(str(part))[1:-1][:40] for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where} is not supported here"
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "model_type":  # pydantic's message names a class.
        return f"{where or 'the file'} has to be a mapping"
    message = error["msg"]
    return f"{where or 'the file'} is wrong: {message[:1].lower()}{message[1:]}"


def _config(file: _File, directory: Path) -> HttpConfig:
    headers = list(_headers(file, directory))
    if len([name for name, _ in headers if name == AUTHORIZATION]) > 1:
        raise UsageError("authorization and basic_auth exclude each other")
    if file.tls_config is None:
        return HttpConfig(headers)
    return HttpConfig(headers, _tls(file.tls_config, directory), file.tls_config.server_name)


def _headers(file: _File, directory: Path) -> Iterator[tuple[str, str]]:
    if (token := file.authorization) is not None:
        if token.type.lower() == "basic":
            raise UsageError("authorization.type is Basic, for which there is basic_auth")
        said = _secret("credentials", token.credentials, token.credentials_file, directory)
        if not said:
            raise UsageError("authorization has no credentials and no credentials_file")
        yield AUTHORIZATION, one_line(f"{token.type} {said}", "authorization")
    if (user := file.basic_auth) is not None:
        password = _secret("password", user.password, user.password_file, directory)
        yield AUTHORIZATION, basic(user.username, password)
    for name, header in file.http_headers.items():
        secrets = (each.get_secret_value() for each in header.secrets)
        in_files = (text_of(directory / each).strip() for each in header.files)
        for value in (*header.values, *secrets, *in_files):
            yield checked_header(name, value)


def _secret(name: str, value: SecretStr | None, file: str | None, directory: Path) -> str:
    if value is not None and file is not None:
        raise UsageError(f"{name} and {name}_file exclude each other")
    if file is not None:
        return text_of(directory / file).strip()
    return "" if value is None else value.get_secret_value().strip()


def _tls(said: _Tls, directory: Path) -> ssl.SSLContext:
    files = said.ca_file, said.cert_file, said.key_file
    authority, certificate, key = (each and str(directory / each) for each in files)
    if bool(certificate) != bool(key):
        raise UsageError("tls_config.cert_file and tls_config.key_file need each other")
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            # An empty password makes an encrypted key an error instead of a prompt.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        named = ", ".join(each for each in (authority, certificate, key) if each)
        raise UsageError(f"cannot load {named}: {_why(error)}") from error
    if said.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(InsecureRequestWarning)  # Somebody asked for it.
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a certificate or key").replace("_", " ").lower()
    return reason(error)

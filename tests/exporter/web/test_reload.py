"""A changed web configuration is used at once, a broken one not at all."""

import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.web.reload import CurrentContext, WatchedConfig
from tests.exporter.certificates import make_certificate

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
USERS = f"basic_auth_users: {{a: {HASH}}}"
TLS = "tls_server_config: {cert_file: node.crt, key_file: node.key}\n"
Install = Callable[..., None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificates old and new."""
    directory = tmp_path_factory.mktemp("made")
    for name in ("old", "new"):
        make_certificate(directory, name)
    return directory


@pytest.fixture
def install(made: Path, tmp_path: Path) -> Install:
    """Puts the certificate and the key of a name in place, or one of them; first the old ones."""

    def install(name: str, *suffixes: str) -> None:
        for suffix in suffixes or ("crt", "key"):
            shutil.copy(made / f"{name}.{suffix}", tmp_path / f"new.{suffix}")
            (tmp_path / f"new.{suffix}").replace(tmp_path / f"node.{suffix}")

    install("old")
    return install


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "web.yaml"


def test_new_users_apply_to_the_next_request(file: Path) -> None:
    """A password that leaked is changed without a restart."""
    file.write_text("")
    times = iter([100.0, 160.0])
    watched = WatchedConfig(file, lambda: next(times))
    assert (watched.current().users, watched.succeeded_at) == ({}, 100.0)

    file.write_text(USERS)
    assert watched.current().users == {"a": HASH.encode()}
    assert (watched.succeeded, watched.succeeded_at) == (True, 160.0)
    assert watched.current() is watched.current()


def test_broken_file_keeps_the_settings_and_is_logged_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake neither opens the listener nor closes it, and does not fill the log."""
    file.write_text(USERS)
    watched = WatchedConfig(file)
    before, succeeded_at = watched.current(), watched.succeeded_at

    file.write_text("basic_auth_users: {a: secret}")
    assert watched.current() is watched.current() is before
    assert (watched.succeeded, watched.succeeded_at) == (False, succeeded_at)
    assert caplog.messages == [
        f"--web.config.file: {file}: the password of user 'a' is not a bcrypt hash; "
        "see htpasswd -nBC 10; the previous settings stay in use"
    ]

    file.unlink()
    assert watched.current() is before
    assert "web.yaml: No such file or directory; the previous" in caplog.messages[-1]

    file.write_text("")
    assert watched.current().users == {}
    assert watched.succeeded


def test_renewed_certificate_is_used_once_its_key_is_there(
    file: Path, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the two files of a renewal the old pair stays in use."""
    file.write_text(TLS)
    watched = WatchedConfig(file)
    old = watched.current().tls

    install("new", "crt")
    assert watched.current().tls is old
    assert "node.crt, " in caplog.messages[-1]

    install("new", "key")
    assert watched.current().tls not in (None, old)
    assert watched.succeeded


@pytest.mark.usefixtures("install")
def test_certificate_that_is_not_there_yet_is_waited_for(file: Path, tmp_path: Path) -> None:
    """A file may name a certificate before it is copied; no second change of the file is needed."""
    file.write_text(TLS)
    watched = WatchedConfig(file)
    old = watched.current().tls

    file.write_text(TLS.replace("node.", "later."))
    assert watched.current().tls is old
    (tmp_path / "later.crt").symlink_to(tmp_path / "node.crt")
    (tmp_path / "later.key").symlink_to(tmp_path / "node.key")
    assert watched.current().tls not in (None, old)

    current = watched.current()
    (tmp_path / "later.crt").unlink()
    shutil.copy(tmp_path / "node.crt", tmp_path / "later.crt")
    assert watched.current() is not current


@pytest.mark.parametrize(("before", "after", "what"), [("", TLS, "added"), (TLS, "", "removed")])
@pytest.mark.usefixtures("install")
def test_http_does_not_become_https_nor_the_other_way_round(
    file: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, what: str
) -> None:
    """Prometheus would need another scheme in the same second; the file is refused whole."""
    file.write_text(before)
    watched = WatchedConfig(file)
    kept = watched.current()

    file.write_text(f"{after}\n{USERS}")
    assert watched.current() is kept
    assert f"tls_server_config was {what}: restart the exporter to serve http" in caplog.text


def handshake(server: ssl.SSLContext, authority: Path) -> str:
    """Return the name in the certificate with which *server* answers a client of *authority*."""
    client = ssl.create_default_context(cafile=str(authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    subject: Any = (one.getpeercert() or {})["subject"]
    return str(subject[0][0][1])


def test_next_handshake_has_the_new_certificate(made: Path, file: Path, install: Install) -> None:
    """asyncio keeps one context for all connections, which follows the file."""
    file.write_text(TLS)
    context = CurrentContext.of(WatchedConfig(file).current)
    for name in ("old", "new"):
        install(name)
        assert handshake(context, made / f"{name}.crt") == name

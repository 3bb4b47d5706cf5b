"""A real exporter behind TLS, client certificates, passwords and headers of the web config file."""

import base64
import http.client
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import bcrypt
import psutil
import pytest

from exporter.listeners.handshakes import HANDSHAKE_SECONDS, HANDSHAKES_MAX
from tests.exporter.certificates import make_certificate
from tests.exporter.running import PATIENCE_SECONDS, RunningExporter, running_exporter
from tests.exporter.snapshots import snapshot

LOGIN = {"Authorization": "Basic " + base64.b64encode(b"prometheus:right").decode()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificates of a server, its scraper and a stranger, and the file."""
    directory = tmp_path_factory.mktemp("tls")
    for name in ("server", "scraper", "stranger"):
        make_certificate(directory, name)
    (directory / "web.yaml").write_text(
        f"""
        tls_server_config:
          cert_file: server.crt
          key_file: server.key
          client_ca_file: scraper.crt
          client_auth_type: RequireAndVerifyClientCert
        http_server_config:
          headers:
            X-Content-Type-Options: nosniff
        basic_auth_users:
          prometheus: {bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()}
        """
    )
    return directory


@pytest.fixture(scope="module")
def exporter(directory: Path) -> Iterator[RunningExporter]:
    flag = f"--web.config.file={directory / 'web.yaml'}"
    with running_exporter(directory / "e.sock", flag) as running:
        yield running


def connect(
    exporter: RunningExporter, directory: Path, client: str | None
) -> http.client.HTTPSConnection:
    """Return a connection with the certificate of *client* that trusts the server's."""
    context = ssl.create_default_context(cafile=str(directory / "server.crt"))
    if client is not None:
        context.load_cert_chain(directory / f"{client}.crt", directory / f"{client}.key")
    return http.client.HTTPSConnection(
        "localhost", exporter.port, timeout=PATIENCE_SECONDS, context=context
    )


def get(
    exporter: RunningExporter, directory: Path, client: str | None, headers: dict[str, str]
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Scrape with the certificate of *client*."""
    connection = connect(exporter, directory, client)
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_scraper_with_certificate_and_password_is_served(
    exporter: RunningExporter, directory: Path
) -> None:
    """Who has both gets the metrics, encrypted, with the headers asked for.

    A certificate alone is a 401, which has the headers too.
    """
    status, headers, body = get(exporter, directory, "scraper", LOGIN)

    assert status == 200
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"rankskew_exporter_build_info" in body

    status, headers, _ = get(exporter, directory, "scraper", {})
    assert status == 401
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("client", [None, "stranger"])
def test_stranger_is_turned_away_by_tls(
    exporter: RunningExporter, directory: Path, client: str | None
) -> None:
    """Without a certificate of the file's authority no request is read at all."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(exporter, directory, client, LOGIN)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        exporter.get("/metrics")  # Nor without TLS.


def test_crowd_that_begins_no_handshake_keeps_no_scraper_out(
    exporter: RunningExporter, directory: Path
) -> None:
    """Of 400 silent connections few are kept, and scrapers at the same address are served.

    One has a connection of its own, the other begins a new one for each scrape.
    """
    process = psutil.Process(exporter.process.pid)
    before = process.num_fds()
    with ExitStack() as stack:
        kept = stack.enter_context(closing(connect(exporter, directory, "scraper")))
        kept.connect()
        own = kept.sock
        for _ in range(4):
            for _ in range(100):
                silent = socket.create_connection(("127.0.0.1", exporter.port))
                stack.callback(silent.close)
            assert get(exporter, directory, "scraper", LOGIN)[0] == 200
            kept.request("GET", "/-/healthy", headers=LOGIN)
            assert kept.getresponse().read() == b"The exporter is healthy.\n"
            assert kept.sock is own  # Else it was ended, and http.client has connected again.
            assert process.num_fds() < before + HANDSHAKES_MAX + 8
        silent.settimeout(HANDSHAKE_SECONDS + PATIENCE_SECONDS / 2)
        assert silent.recv(1) == b""
    assert not [line for line in exporter.log if "ERROR" in line]
    # The ingest socket, which the file does not protect, has its file mode.
    assert exporter.push(snapshot().to_json())[0] == 200


def test_renewed_certificate_and_password_need_no_restart(tmp_path: Path) -> None:
    """The next handshake has the new certificate; a connection that is open has its new login."""
    for name in ("old", "new"):
        make_certificate(tmp_path, name)
    secured = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    install(tmp_path, "old")
    (tmp_path / "web.yaml").write_text(secured)
    flag = f"--web.config.file={tmp_path / 'web.yaml'}"
    with running_exporter(tmp_path / "e.sock", flag) as exporter:
        with closing(connect(exporter, tmp_path, None)) as kept:
            assert status(kept, {}) == 200
            install(tmp_path, "new")
            with closing(connect(exporter, tmp_path, None)) as anew:
                assert status(anew, {}) == 200  # It trusts only what server.crt is now.
            (tmp_path / "web.yaml").write_text(
                f"{secured}basic_auth_users: {{prometheus: {hashed}}}"
            )
            assert (status(kept, {}), status(kept, LOGIN)) == (401, 200)

            (tmp_path / "server.key").write_text("half a k")
            page = get(exporter, tmp_path, None, LOGIN)[2].decode()
        (broken,) = [line for line in exporter.log if " ERROR " in line]

    assert "rankskew_exporter_web_config_last_reload_successful 0.0" in page
    assert re.search(r"cannot load .*server\.key .*; the previous settings stay in use$", broken)


def install(directory: Path, name: str) -> None:
    """Make the certificate *name* the server's, as a renewal does."""
    for suffix in ("crt", "key"):
        shutil.copy(directory / f"{name}.{suffix}", directory / "renewed")
        (directory / "renewed").replace(directory / f"server.{suffix}")


def status(connection: http.client.HTTPSConnection, headers: dict[str, str]) -> int:
    """Return the status of a scrape over *connection*, which stays open."""
    connection.request("GET", "/metrics", headers=headers)
    with connection.getresponse() as response:
        response.read()
        return response.status

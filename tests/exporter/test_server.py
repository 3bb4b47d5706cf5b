"""A real exporter starts on what its flags say, takes pushes, outlives floods, and ends cleanly.

So does one behind the TLS, the client certificates and the passwords of its web config file.
"""

import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path

import bcrypt
import psutil
import pytest

from exporter.listeners.handshakes import HANDSHAKES_MAX
from exporter.listeners.sockets import BACKLOG
from rankskew.__main__ import main
from tests.exporter.running import (
    PATIENCE_SECONDS,
    ROOT,
    RunningExporter,
    UnixConnection,
    basic,
    counted,
    exchange,
    make_certificate,
    promtool_check_metrics,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """One exporter for the tests that do not end it."""
    path = tmp_path_factory.mktemp("exporter") / "made" / "e.sock"
    flags = ("--ingest.listen-address=127.0.0.1:0", "--ingest.socket-mode=0660")
    with running_exporter(path, *flags) as running:
        yield running


def test_pushed_rank_is_scraped_without_gpu_or_driver(exporter: RunningExporter) -> None:
    """A node without GPUs is a normal node: every collector works, and readiness comes.

    A rank reports at the socket, or over loopback where none can be shared; not from the network.
    Every name, type and help text of the page is as Prometheus wants it. The log is short.
    """
    wait_until(lambda: exporter.get("/-/ready")[0] == 200)
    assert exporter.push(snapshot(job_id="pushed").to_json()) == (200, {})
    loopback = snapshot(job_id="loopback").to_json()
    assert exporter.push_over_tcp(exporter.tcp_port(), loopback) == (200, {})
    web = http.client.HTTPConnection("127.0.0.1", exporter.port)
    assert exchange(web, "POST", "/v1/snapshots", loopback)[0] == 404
    page = exporter.metrics()
    checked = promtool_check_metrics(page)

    for job in ("pushed", "loopback"):
        assert f'rankskew_steps_total{{job_id="{job}",peer_group="all",rank="0"}} 100.0' in page
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert re.findall(r'rankskew_collector_success{collector="(\w+)"} 0', page) == []
    assert 'rankskew_collector_success{collector="node_cpu"} 1.0' in page
    assert "\nrankskew_gpus_visible " in page
    assert "DEBUG" not in "\n".join(exporter.log)
    # The flag decides who may push; who may push may not give orders.
    paths = exporter.socket_path, exporter.operator_path
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o660, 0o600]
    wait_until(lambda: json.loads(exporter.get("/api/v1/live")[2])["gpus_visible"] == 0)


def test_images_health_check_tells_a_running_exporter(
    exporter: RunningExporter, tmp_path: Path
) -> None:
    """It has no package but Python's own, and says where no exporter listens."""
    check = [sys.executable, "-I", "-S", str(ROOT / "deploy" / "image" / "health_check.py")]
    healthy = subprocess.check_output([*check, exporter.operator_path], text=True)
    assert healthy == "The exporter is healthy.\n"
    absent = tmp_path / "operator.sock"
    said = subprocess.run([*check, absent], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith(f"no answer from {absent}: ")


MEMORY = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SReclaimable", "Shmem"),
    *("Active", "Inactive", "Slab"),
)


def test_exporter_does_what_it_can_where_it_is_run_and_leaves_nothing(tmp_path: Path) -> None:
    """In a container the flag points at the node's /proc; what cannot be read there has failed.

    A unit that is older than the operator's socket makes no directory for it: one warning, no
    orders. Each record of the log is an object; what a crashing child prints passes as it is. Told
    to end, it waits for no kept-alive connection, removes its socket and ends its children.
    """
    (tmp_path / "meminfo").write_text("".join(f"{name}: 1000 kB\n" for name in MEMORY))
    more = ("--operator.socket=/proc/nowhere/operator.sock", "--log.level=debug")
    path = tmp_path / "e.sock"
    with running_exporter(path, f"--path.procfs={tmp_path}", "--log.format=json", *more) as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        assert running.push(snapshot(job_id="watched").to_json())[0] == 200
        page = running.metrics()
        parent = psutil.Process(running.process.pid)
        worker = [each for each in parent.children() if "exporter.nvml.worker" in each.cmdline()]
        worker[0].send_signal(signal.SIGSEGV)
        wait_until(lambda: any("Segmentation" in line for line in running.log))
        children = parent.children(recursive=True)
        rank, scraper = UnixConnection(path), http.client.HTTPConnection("127.0.0.1", running.port)
        for connection, request in ((rank, "/v1/snapshots"), (scraper, "/metrics")):
            connection.request("GET", request)
            connection.getresponse().read()
        running.terminate(signal.SIGINT)
        rank.close()
        scraper.close()
    crash = next(number for number, line in enumerate(running.log) if "Segmentation" in line)
    said = [json.loads(line) for line in (*running.log[:crash], running.log[-1])]
    (warning,) = [each for each in said if "orders are off" in each["message"]]

    assert 'job_id="watched"' in page
    assert "rankskew_node_memory_total_bytes 1.024e+06" in page
    assert 'rankskew_collector_success{collector="node_cpu"} 0.0' in page
    assert "rankskew_node_cpu_seconds_total{" not in page
    assert all(list(each)[:4] == ["time", "level", "message", "logger"] for each in said)
    assert {"debug", "info", "warning"} <= {each["level"] for each in said}
    assert warning["level"] == "warning"
    assert "cannot create /proc/nowhere for a socket" in warning["message"]
    assert said[-1]["message"] == "stopped"
    assert running.process.returncode == 0
    assert not path.exists()
    assert not [child for child in children if child.is_running()]
    assert not [line for line in running.log if "Traceback" in line]


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--ingest.socket={taken}", "another exporter listens on .*"),
        (
            "--web.listen-address=127.0.0.1:{port}",
            ".*Address already in use; stop what holds it or choose another --web.listen-address",
        ),
        # Without a token anyone could push, so that listener stays on the node.
        *(
            (
                f"--ingest.listen-address={each}",
                ".* is not a loopback address, .* set --ingest.token-file.*",
            )
            for each in ("0.0.0.0:0", "192.0.2.1:0", ":0", "[::]:0", "example.org:0")
        ),
    ],
)
def test_start_that_fails_is_one_line(
    exporter: RunningExporter,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    flag: str,
    complaint: str,
) -> None:
    """It says what to do, leaves no socket behind, and harms no exporter that runs.

    Where the log is JSON for a shipper, it is a record of the log.
    """
    path = tmp_path / "e.sock"
    flag = flag.format(taken=exporter.socket_path, port=exporter.port)

    usual = ["--web.listen-address=127.0.0.1:0", f"--ingest.socket={path}"]
    assert main(["exporter", *usual, flag]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(rf"rankskew: {complaint}\n", output.err)
    assert main(["exporter", *usual, "--log.format=json", flag]) == 2
    assert capsys.readouterr() == ("", "")
    last = caplog.records[-1]
    assert last.levelname == "CRITICAL"
    assert f"rankskew: {last.getMessage()}\n" == output.err
    assert not path.exists()
    assert exporter.push(snapshot(job_id="pushed", sequence=3).to_json())[0] == 200


def test_flood_of_connections_costs_a_few_files(tmp_path: Path) -> None:
    """Of what waits while the exporter is held up it takes in as many as it has files for.

    Of these most are turned away; the rank that was there does not notice.
    """
    flags = ("--ranks.jobs-max=8", "--ranks.max=32", "--ingest.connections-per-rank=2")
    with running_exporter(tmp_path / "e.sock", *flags) as running, ExitStack() as stack:
        process = psutil.Process(running.process.pid)
        rank = stack.enter_context(closing(UnixConnection(running.socket_path)))

        def connects() -> bool:
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.setblocking(False)
            return idle.connect_ex(str(running.socket_path)) == 0

        assert status(rank, {}, snapshot().to_json()) == 200
        process.suspend()
        stack.callback(process.resume)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        waiting = sum(connects() for _ in range(3 * BACKLOG))
        assert 31 < waiting <= BACKLOG + 1
        process.resume()
        # A user has half of the 64 places, and one of them is the rank's.
        wait_until(lambda: counted(running.metrics(), "turned_away") == waiting - 31)
        assert status(rank, {}, snapshot().to_json()) == 200
        assert process.num_fds() < BACKLOG + 128
        assert not [line for line in running.log if "out of system resource" in line]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificates of a server, its scraper and a stranger, and the file."""
    directory = tmp_path_factory.mktemp("tls")
    for name in ("server", "renewed", "scraper", "stranger"):
        make_certificate(directory, name)
    configure(directory, "right")
    return directory


def configure(directory: Path, password: str) -> None:
    """Write the web config file."""
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
          prometheus: {bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}
        """
    )


LOGIN = basic("prometheus:right")


class Secured:
    """An exporter behind the web config file of *directory*."""

    def __init__(self, exporter: RunningExporter, directory: Path) -> None:
        self.exporter = exporter
        self._directory = directory

    def context(self, client: str | None, trusted: Path | None = None) -> ssl.SSLContext:
        """Return a context with the certificate of *client* that trusts *trusted*.

        By default, that is what the server's is now.
        """
        context = ssl.create_default_context(cafile=trusted or self._directory / "server.crt")
        if client is not None:
            certificate = self._directory / f"{client}.crt"
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        return context

    def connect(self, client: str | None, trusted: Path | None = None) -> HTTPSConnection:
        """Return a connection with that context."""
        context = self.context(client, trusted)
        port = self.exporter.port
        return HTTPSConnection("localhost", port, timeout=PATIENCE_SECONDS, context=context)

    def get(
        self, client: str | None, headers: dict[str, str], trusted: Path | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Scrape over such a connection."""
        return exchange(self.connect(client, trusted), "GET", "/metrics", headers=headers)


@pytest.fixture(scope="module")
def secured(directory: Path) -> Iterator[Secured]:
    flag = f"--web.config.file={directory / 'web.yaml'}"
    with running_exporter(directory / "e.sock", flag) as running:
        yield Secured(running, directory)


def test_scraper_with_certificate_and_password_is_served(secured: Secured) -> None:
    """Who has both gets the metrics, encrypted, with the headers asked for.

    A certificate alone is a 401, which has the headers too. Without a certificate of the file's
    authority, or without TLS, no request is read at all.
    """
    for headers, expected in ((LOGIN, 200), ({}, 401)):
        status, answered, body = secured.get("scraper", headers)
        assert status == expected
        assert answered["X-Content-Type-Options"] == "nosniff"
        assert (b"rankskew_exporter_build_info" in body) is (expected == 200)

    for client in (None, "stranger"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secured.get(client, LOGIN)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        secured.exporter.get("/metrics")


def test_crowd_that_begins_no_handshake_keeps_no_scraper_out(secured: Secured) -> None:
    """Of 100 silent connections few are kept, and scrapers at the same address are served.

    So is one that takes its time to begin, elsewhere; one with a connection of its own keeps it.
    """
    exporter = secured.exporter
    process = psutil.Process(exporter.process.pid)
    before = process.num_fds()
    with ExitStack() as stack:

        def connected(address: str) -> socket.socket:
            here = ("127.0.0.1", exporter.port)
            return stack.enter_context(socket.create_connection(here, source_address=(address, 0)))

        kept = stack.enter_context(closing(secured.connect("scraper")))
        kept.connect()
        own, slow = kept.sock, connected("127.0.0.2")
        crowd = [connected("127.0.0.1") for _ in range(100)]
        assert secured.get("scraper", LOGIN)[0] == 200
        assert status(kept, LOGIN) == 200
        assert kept.sock is own  # Else it was ended, and http.client has connected again.
        assert process.num_fds() < before + HANDSHAKES_MAX + 8
        assert crowd[0].recv(1) == b""
        with secured.context("scraper").wrap_socket(slow, server_hostname="localhost") as served:
            assert served.version() is not None
    assert not [line for line in exporter.log if "ERROR" in line]
    # The ingest socket, which the file does not protect, has its file mode.
    assert exporter.push(snapshot().to_json())[0] == 200


def test_new_certificate_and_password_need_no_restart(secured: Secured, directory: Path) -> None:
    """The next handshake has the new certificate; a connection that is open has its new login.

    Between the two files of a renewal the old pair stays in use.
    """
    trusted = Path(shutil.copy(directory / "server.crt", directory / "old.crt"))
    with closing(secured.connect("scraper")) as kept:
        assert status(kept, LOGIN) == 200
        (directory / "renewed.crt").replace(directory / "server.crt")
        assert secured.get("scraper", LOGIN, trusted)[0] == 200
        assert "last_reload_successful 0.0" in secured.get("scraper", LOGIN, trusted)[2].decode()
        (directory / "renewed.key").replace(directory / "server.key")
        assert secured.get("scraper", LOGIN)[0] == 200
        configure(directory, "newer")
        assert (status(kept, LOGIN), status(kept, basic("prometheus:newer"))) == (401, 200)


def status(
    connection: http.client.HTTPConnection, headers: dict[str, str], body: bytes | None = None
) -> int:
    """Return the status of a scrape, or a push of *body*, over *connection*, which stays open."""
    asked = ("GET", "/metrics") if body is None else ("POST", "/v1/snapshots")
    connection.request(*asked, body, headers)
    with connection.getresponse() as response:
        response.read()
        return response.status

"""A real exporter starts on what its flags say, takes pushes, outlives floods, and ends cleanly.

So does one behind the TLS, the client certificates and the passwords of its web config file.
"""

import base64
import http.client
import json
import re
import resource
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import bcrypt
import psutil
import pytest

from exporter.listeners.handshakes import HANDSHAKE_SECONDS, HANDSHAKES_MAX
from exporter.listeners.sockets import BACKLOG
from rankskew.__main__ import main
from tests.exporter.running import (
    PATIENCE_SECONDS,
    ROOT,
    RunningExporter,
    UnixConnection,
    counted,
    exchange,
    make_certificate,
    promtool_check_metrics,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot


def test_exporter_gets_ready_without_gpu_or_driver(exporter: RunningExporter) -> None:
    """A node without GPUs is a normal node: every collector works, and readiness comes.

    Every name, type and help text of the page is as Prometheus wants it. The log is short.
    """
    wait_until(lambda: exporter.get("/-/ready")[0] == 200)
    exporter.push(snapshot(job_id="pushed", sequence=2).to_json())
    page = exporter.metrics()
    checked = promtool_check_metrics(page)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert re.findall(r'rankskew_collector_success{collector="(\w+)"} 0', page) == []
    assert 'rankskew_collector_success{collector="node_cpu"} 1.0' in page
    assert "\nrankskew_gpus_visible " in page
    assert "DEBUG" not in "\n".join(exporter.log)
    # The flag decides who may push; who may push may not give orders.
    paths = exporter.socket_path, exporter.operator_path
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o660, 0o600]
    wait_until(lambda: json.loads(exporter.get("/api/v1/live")[2])["gpus_visible"] == 0)


def test_pushed_rank_is_scraped(exporter: RunningExporter) -> None:
    """From the socket, or over loopback where none can be shared; not from the network."""
    assert exporter.push(snapshot(job_id="pushed").to_json()) == (200, {})
    assert exporter.push_over_loopback(snapshot(job_id="loopback").to_json()) == (200, {})
    assert exporter.request("POST", "/v1/snapshots", snapshot().to_json())[0] == 404

    page = exporter.metrics()
    for job in ("pushed", "loopback"):
        assert f'rankskew_steps_total{{job_id="{job}",peer_group="all",rank="0"}} 100.0' in page
    assert counted(page, "accepted") >= 2


MEMORY = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SReclaimable", "Shmem"),
    *("Active", "Inactive", "Slab"),
)


def test_exporter_does_what_it_can_where_it_is_run_and_leaves_nothing(tmp_path: Path) -> None:
    """In a container the flag points at the node's /proc; what cannot be read there has failed.

    A unit that is older than the operator's socket makes no directory for it: one warning, no
    orders. --log.level=debug adds which collectors have no series. Told to end, it waits for no
    kept-alive connection, removes its socket and ends its children.
    """
    (tmp_path / "meminfo").write_text("".join(f"{name}: 1000 kB\n" for name in MEMORY))
    flags = ("--operator.socket=/proc/nowhere/operator.sock", "--log.level=debug")
    path = tmp_path / "e.sock"
    with running_exporter(path, f"--path.procfs={tmp_path}", *flags) as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        assert running.push(snapshot(job_id="watched").to_json())[0] == 200
        page = running.metrics()
        no_series = re.compile(r"DEBUG collector \w+ has no series: ")
        wait_until(lambda: any(no_series.search(line) for line in running.log))
        children = psutil.Process(running.process.pid).children(recursive=True)
        rank, scraper = UnixConnection(path), http.client.HTTPConnection("127.0.0.1", running.port)
        for connection, request in ((rank, "/v1/snapshots"), (scraper, "/metrics")):
            connection.request("GET", request)
            connection.getresponse().read()
        running.terminate()
        rank.close()
        scraper.close()
    (warning,) = [line for line in running.log if "orders are off" in line]

    assert 'job_id="watched"' in page
    assert "rankskew_node_memory_total_bytes 1.024e+06" in page
    assert 'rankskew_collector_success{collector="node_cpu"} 0.0' in page
    assert "rankskew_node_cpu_seconds_total{" not in page
    assert " WARNING " in warning
    assert "cannot create /proc/nowhere for a socket" in warning
    assert running.process.returncode == 0
    assert not path.exists()
    assert children
    assert not [child for child in children if child.is_running()]
    assert not [line for line in running.log if "Traceback" in line]


def test_quiet_exporter_says_what_is_off() -> None:
    """With --log.level=warning there is nothing else."""
    flags = ["--web.listen-address=127.0.0.1:0", "--ingest.socket=", "--operator.socket="]
    command = [*RunningExporter.COMMAND, *flags, "--path.state=", "--log.level=warning"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        log = first + process.stderr.read()

    assert " WARNING ingest is off: no rank can report to this exporter" in log
    assert " INFO " not in log


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--ingest.socket={taken}", "another exporter listens on .*"),
        (
            "--web.listen-address=127.0.0.1:{port}",
            ".*Address already in use; stop what holds it or choose another --web.listen-address",
        ),
        (
            "--ingest.listen-address=0.0.0.0:9918",
            ".* is not a loopback address, and without a token .*",
        ),
        (
            "--ingest.token-file=/nowhere",
            "--ingest.token-file: cannot read /nowhere: No such file .*",
        ),
    ],
)
def test_start_that_fails_is_one_line(
    exporter: RunningExporter,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    complaint: str,
) -> None:
    """It says what to do, leaves no socket behind, and harms no exporter that runs."""
    path = tmp_path / "e.sock"
    flag = flag.format(taken=exporter.socket_path, port=exporter.port)

    usual = ["--web.listen-address=127.0.0.1:0", f"--ingest.socket={path}"]
    assert main(["exporter", *usual, flag]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(rf"rankskew: {complaint}\n", output.err)
    assert not path.exists()
    assert exporter.push(snapshot(job_id="pushed", sequence=3).to_json())[0] == 200


def test_every_record_is_an_object(tmp_path: Path) -> None:
    """A log shipper needs no rule for ours; what a crashing child prints passes as it is.

    Whatever keeps the exporter from starting is found where the rest of its log is.
    """
    with running_exporter(tmp_path / "e.sock", "--log.format=json", "--path.state=") as exporter:
        parent = psutil.Process(exporter.process.pid)
        wait_until(lambda: exporter.get("/-/ready")[0] == 200)
        address = f"127.0.0.1:{exporter.port}"
        ended = subprocess.run(
            [
                *(*RunningExporter.COMMAND, "--log.format=json", "--ingest.socket="),
                *("--operator.socket=", f"--web.listen-address={address}"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        workers(parent)[0].send_signal(signal.SIGSEGV)
        wait_until(lambda: any("Segmentation" in line for line in exporter.log))
        exporter.terminate(signal.SIGINT)

    assert exporter.process.returncode == 0
    crash = next(number for number, line in enumerate(exporter.log) if "Segmentation" in line)
    said = [json.loads(line) for line in (*exporter.log[:crash], exporter.log[-1])]
    assert all(list(each)[:4] == ["time", "level", "message", "logger"] for each in said)
    assert said[-1]["message"] == "stopped"
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, json.loads(line)["level"]) == (2, "critical")
    assert json.loads(line)["message"].startswith(f"cannot listen on {address}: ")


def workers(parent: psutil.Process) -> list[psutil.Process]:
    """Return the NVML worker; it handles crashes from before its first sample."""
    return [each for each in parent.children() if "exporter.nvml.worker" in each.cmdline()]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """An exporter with little room, and the files that a service gets by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # For the sockets of a flood.
    flags = ("--ranks.jobs-max=8", "--ranks.max=32", "--ingest.connections-per-rank=2")
    with running_exporter(tmp_path_factory.mktemp("crowd") / "e.sock", *flags) as running:
        psutil.Process(running.process.pid).rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Rank:
    """A rank of job real that pushes over a connection of its own."""

    def __init__(self, exporter: RunningExporter, number: int) -> None:
        self._connection = UnixConnection(exporter.socket_path)
        self._number = number
        self._sequence = 0

    def push(self, job_id: str = "real") -> int:
        """Return the status of its next push."""
        self._sequence += 1
        pushed = snapshot(job_id=job_id, rank=self._number, sequence=self._sequence)
        self._connection.request("POST", "/v1/snapshots", pushed.to_json())
        with self._connection.getresponse() as response:
            response.read()
            return response.status

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def test_flood_of_jobs_leaves_the_page_small(crowded: RunningExporter) -> None:
    """Hundreds of invented job names cost a counter, not a series each, and real ranks stay."""
    with closing(Rank(crowded, 0)) as rank:
        rank.push()
        statuses = [rank.push(f"job-{number}") for number in range(500)]
    page = crowded.metrics()

    assert (statuses.count(200), statuses.count(429)) == (7, 493)
    assert counted(page, "no_room") == 493
    assert 'rankskew_steps_total{job_id="real"' in page
    assert len(set(re.findall(r'job_id="([^"]*)"', page))) == 8
    assert len(page) < 100_000


def test_flood_of_idle_connections_costs_a_few_files(crowded: RunningExporter) -> None:
    """Of 2,000 silent connections most are turned away; ranks and scrapes do not notice."""
    process, path = psutil.Process(crowded.process.pid), str(crowded.socket_path)
    pushed: list[int] = []
    files: list[int] = []
    with ExitStack() as stack:
        rank = stack.enter_context(closing(Rank(crowded, 1)))
        for number in range(2_000):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.setblocking(False)
            wait_until(lambda idle=idle: idle.connect_ex(path) == 0)  # type: ignore[misc] # a default
            if number % 500 == 0:
                pushed.append(rank.push())
                assert "rankskew_steps_total{" in crowded.metrics()
                files.append(process.num_fds())
        wait_until(lambda: counted(crowded.metrics(), "turned_away") == 2_000 - 31)
        pushed.append(rank.push())
        files.append(process.num_fds())

    assert pushed == [200] * 5
    assert max(files) < BACKLOG + 128
    assert not [line for line in crowded.log if "out of system resource" in line]


def test_no_more_connections_queue_than_can_be_taken_in_at_once(crowded: RunningExporter) -> None:
    """What waits while the exporter is held up cannot use up its files when it continues."""
    process = psutil.Process(crowded.process.pid)
    with ExitStack() as stack:
        process.suspend()
        stack.callback(process.resume)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        refusals = []
        for _ in range(3 * BACKLOG):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            refusals.append(waiting.connect_ex(str(crowded.socket_path)) != 0)
        process.resume()
        assert crowded.get("/metrics")[0] == 200

    assert 0 < refusals.count(False) <= BACKLOG + 1


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


def login(password: str) -> dict[str, str]:
    """Return the header of a scraper with *password*."""
    user = base64.b64encode(f"prometheus:{password}".encode()).decode()
    return {"Authorization": f"Basic {user}"}


LOGIN = login("right")


@pytest.fixture(scope="module")
def secured(directory: Path) -> Iterator[RunningExporter]:
    flag = f"--web.config.file={directory / 'web.yaml'}"
    with running_exporter(directory / "e.sock", flag) as running:
        yield running


def connect(
    secured: RunningExporter, directory: Path, client: str | None
) -> http.client.HTTPSConnection:
    """Return a connection with the certificate of *client* that trusts the server's."""
    context = ssl.create_default_context(cafile=str(directory / "server.crt"))
    if client is not None:
        context.load_cert_chain(directory / f"{client}.crt", directory / f"{client}.key")
    return http.client.HTTPSConnection(
        "localhost", secured.port, timeout=PATIENCE_SECONDS, context=context
    )


def get(
    secured: RunningExporter, directory: Path, client: str | None, headers: dict[str, str]
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Scrape with the certificate of *client*."""
    return exchange(connect(secured, directory, client), "GET", "/metrics", headers=headers)


def test_scraper_with_certificate_and_password_is_served(
    secured: RunningExporter, directory: Path
) -> None:
    """Who has both gets the metrics, encrypted, with the headers asked for.

    A certificate alone is a 401, which has the headers too. Without a certificate of the file's
    authority, or without TLS, no request is read at all.
    """
    for headers, expected in ((LOGIN, 200), ({}, 401)):
        status, answered, body = get(secured, directory, "scraper", headers)
        assert status == expected
        assert answered["X-Content-Type-Options"] == "nosniff"
        assert (b"rankskew_exporter_build_info" in body) is (expected == 200)

    for client in (None, "stranger"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(secured, directory, client, LOGIN)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        secured.get("/metrics")


def test_crowd_that_begins_no_handshake_keeps_no_scraper_out(
    secured: RunningExporter, directory: Path
) -> None:
    """Of 400 silent connections few are kept, and scrapers at the same address are served.

    One has a connection of its own, the other begins a new one for each scrape.
    """
    process = psutil.Process(secured.process.pid)
    before = process.num_fds()
    with ExitStack() as stack:
        kept = stack.enter_context(closing(connect(secured, directory, "scraper")))
        kept.connect()
        own = kept.sock
        for _ in range(4):
            for _ in range(100):
                silent = socket.create_connection(("127.0.0.1", secured.port))
                stack.callback(silent.close)
            assert get(secured, directory, "scraper", LOGIN)[0] == 200
            kept.request("GET", "/-/healthy", headers=LOGIN)
            assert kept.getresponse().read() == b"The exporter is healthy.\n"
            assert kept.sock is own  # Else it was ended, and http.client has connected again.
            assert process.num_fds() < before + HANDSHAKES_MAX + 8
        silent.settimeout(HANDSHAKE_SECONDS + PATIENCE_SECONDS / 2)
        assert silent.recv(1) == b""
    assert not [line for line in secured.log if "ERROR" in line]
    # The ingest socket, which the file does not protect, has its file mode.
    assert secured.push(snapshot().to_json())[0] == 200


def test_renewed_certificate_and_password_need_no_restart(
    secured: RunningExporter, directory: Path
) -> None:
    """The next handshake has the new certificate; a connection that is open has its new login."""
    with closing(connect(secured, directory, "scraper")) as kept:
        assert status(kept, LOGIN) == 200
        for suffix in ("crt", "key"):
            (directory / f"renewed.{suffix}").replace(directory / f"server.{suffix}")
        # It trusts only what server.crt is now.
        assert get(secured, directory, "scraper", LOGIN)[0] == 200
        configure(directory, "newer")
        assert (status(kept, LOGIN), status(kept, login("newer"))) == (401, 200)

    (directory / "server.key").write_text("half a k")
    page = get(secured, directory, "scraper", login("newer"))[2].decode()
    (broken,) = [line for line in secured.log if " ERROR " in line]
    assert "rankskew_exporter_web_config_last_reload_successful 0.0" in page
    assert re.search(r"cannot load .*server\.key .*; the previous settings stay in use$", broken)


def status(connection: http.client.HTTPSConnection, headers: dict[str, str]) -> int:
    """Return the status of a scrape over *connection*, which stays open."""
    connection.request("GET", "/metrics", headers=headers)
    with connection.getresponse() as response:
        response.read()
        return response.status

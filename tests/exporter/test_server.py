"""A real exporter starts on what its flags say, takes pushes, outlives floods, and ends cleanly."""

import http.client
import json
import re
import resource
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from exporter.listeners.sockets import BACKLOG
from rankskew.__main__ import main
from tests.exporter.running import (
    PATIENCE_SECONDS,
    ROOT,
    RunningExporter,
    UnixConnection,
    counted,
    promtool_check_metrics,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot

MEMORY = "\n".join(
    f"{name}: 1000 kB"
    for name in (
        *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SReclaimable", "Shmem"),
        *("Active", "Inactive", "Slab"),
    )
)


def test_exporter_gets_ready_without_gpu_or_driver(exporter: RunningExporter) -> None:
    """A node without GPUs is a normal node: every collector works, and readiness comes.

    Every name, type and help text of the page is as Prometheus wants it.
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


def test_log_has_what_its_level_says(tmp_path: Path) -> None:
    """--log.level=debug adds which collectors have no series; the default does not."""
    off = re.compile(r"DEBUG collector \w+ has no series: ")
    with running_exporter(tmp_path / "e.sock", "--log.level=debug") as loud:
        wait_until(lambda: any(off.search(line) for line in loud.log))
    with running_exporter(tmp_path / "e.sock") as usual:
        wait_until(lambda: "\nrankskew_gpus_visible 0.0" in usual.metrics())
        assert "DEBUG" not in "\n".join(usual.log)

    flags = ["--web.listen-address=127.0.0.1:0", "--ingest.socket=", "--operator.socket="]
    command = [*RunningExporter.COMMAND, *flags, "--path.state=", "--log.level=warning"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        log = first + process.stderr.read()
    assert " WARNING ingest is off: no rank can report to this exporter" in log
    assert " INFO " not in log


def test_node_is_read_from_the_mounted_procfs(tmp_path: Path) -> None:
    """In a container the flag points at the node's /proc; what cannot be read there has failed."""
    (tmp_path / "meminfo").write_text(MEMORY)
    with running_exporter(tmp_path / "e.sock", f"--path.procfs={tmp_path}") as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        page = running.metrics()

    assert "rankskew_node_memory_total_bytes 1.024e+06" in page
    assert 'rankskew_collector_success{collector="node_cpu"} 0.0' in page
    assert "rankskew_node_cpu_seconds_total{" not in page


def test_node_is_watched_without_the_operators_socket(tmp_path: Path) -> None:
    """A unit that is older than the socket makes no directory for it: one warning, no orders."""
    flag = "--operator.socket=/proc/nowhere/operator.sock"
    with running_exporter(tmp_path / "e.sock", flag) as running:
        assert running.push(snapshot(job_id="watched").to_json())[0] == 200
        assert 'job_id="watched"' in running.metrics()
    (warning,) = [line for line in running.log if " WARNING " in line]

    assert "orders are off: cannot create /proc/nowhere for a socket" in warning


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_ends_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Told to end, it waits for no kept-alive connection, removes its socket, ends its children."""
    path = tmp_path / "e.sock"
    with running_exporter(path) as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        children = psutil.Process(running.process.pid).children(recursive=True)
        rank, scraper = UnixConnection(path), http.client.HTTPConnection("127.0.0.1", running.port)
        for connection, request in ((rank, "/v1/snapshots"), (scraper, "/metrics")):
            connection.request("GET", request)
            connection.getresponse().read()
        running.terminate(number)
        rank.close()
        scraper.close()

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
        exporter.terminate()

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


def test_pushed_rank_is_scraped(exporter: RunningExporter) -> None:
    """From the socket, or over loopback where none can be shared; not from the network."""
    assert exporter.push(snapshot(job_id="pushed").to_json()) == (200, {})
    assert exporter.push_over_loopback(snapshot(job_id="loopback").to_json()) == (200, {})
    assert exporter.request("POST", "/v1/snapshots", snapshot().to_json())[0] == 404

    page = exporter.metrics()
    for job in ("pushed", "loopback"):
        assert f'rankskew_steps_total{{job_id="{job}",peer_group="all",rank="0"}} 100.0' in page
    assert counted(page, "accepted") >= 2


def test_flood_of_jobs_leaves_the_page_small(tmp_path: Path) -> None:
    """2,000 invented job names cost a counter, not a series each, and real ranks stay."""
    with running_exporter(tmp_path / "e.sock", "--ranks.jobs-max=8") as running:
        running.push(snapshot(job_id="real").to_json())
        connection = UnixConnection(running.socket_path)
        statuses = []
        for number in range(2_000):
            connection.request("POST", "/v1/snapshots", snapshot(job_id=f"job-{number}").to_json())
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        page = running.metrics()

    assert (statuses.count(200), statuses.count(429)) == (7, 1_993)
    assert counted(page, "no_room") == 1_993
    assert 'rankskew_steps_total{job_id="real"' in page
    assert len(set(re.findall(r'job_id="([^"]*)"', page))) == 8
    assert len(page) < 100_000


@pytest.fixture
def room_for_sockets() -> Iterator[None]:
    """Let this process open as many files as a flood needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("room_for_sockets")
def test_flood_of_idle_connections_costs_a_few_files(tmp_path: Path) -> None:
    """Of 2,000 silent connections most are turned away; ranks and scrapes do not notice."""
    path = tmp_path / "e.sock"
    flags = ("--ranks.max=32", "--ingest.connections-per-rank=2")
    with running_exporter(path, *flags) as running, ExitStack() as stack:
        process = psutil.Process(running.process.pid)
        # What a service gets by default, if its unit does not say otherwise.
        process.rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
        rank = UnixConnection(path)
        stack.callback(rank.close)
        pushed: list[int] = []
        files: list[int] = []

        def push_again() -> int:
            rank.request("POST", "/v1/snapshots", snapshot(sequence=len(pushed)).to_json())
            response = rank.getresponse()
            response.read()
            return response.status

        for number in range(2_000):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.setblocking(False)
            wait_until(lambda idle=idle: idle.connect_ex(str(path)) == 0)  # type: ignore[misc] # a default
            if number % 500 == 0:
                pushed.append(push_again())
                assert "rankskew_steps_total{" in running.metrics()
                files.append(process.num_fds())
        wait_until(lambda: counted(running.metrics(), "turned_away") == 2_000 - 31)
        pushed.append(push_again())
        files.append(process.num_fds())

    assert pushed == [200] * 5
    assert max(files) < BACKLOG + 128
    assert not [line for line in running.log if "out of system resource" in line]


@pytest.mark.usefixtures("room_for_sockets")
def test_no_more_connections_queue_than_can_be_taken_in_at_once(tmp_path: Path) -> None:
    """What waits while the exporter is held up cannot use up its files when it continues."""
    path = tmp_path / "e.sock"
    with running_exporter(path) as running, ExitStack() as stack:
        process = psutil.Process(running.process.pid)
        process.suspend()
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        refusals = []
        for _ in range(3 * BACKLOG):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            refusals.append(waiting.connect_ex(str(path)) != 0)
        process.resume()
        assert running.get("/metrics")[0] == 200

    assert 0 < refusals.count(False) <= BACKLOG + 1

"""A real exporter process takes in good and bad pushes, serves its pages, and ends cleanly."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from exporter.__main__ import main
from exporter.server import QUEUED_CONNECTIONS
from tests.exporter.running import (
    PATIENCE_SECONDS,
    RunningExporter,
    UnixConnection,
    promtool_check_metrics,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot

# Ending must not hold up a node's shutdown or a restart.
END_SECONDS = 2.0
NOBODY_UID = 65534


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """One exporter for the tests that do not end it; each of them uses a job of its own."""
    path = tmp_path_factory.mktemp("exporter") / "made" / "e.sock"
    flags = ("--ingest.listen-address=127.0.0.1:0", "--ingest.socket-mode=0660")
    with running_exporter(path, *flags) as running:
        yield running


def counted(page: str, result: str) -> float:
    match = re.search(rf'rankskew_ingest_snapshots_total{{result="{result}"}} (\S+)', page)
    assert match is not None
    return float(match[1])


def push_over_loopback(running: RunningExporter, body: bytes) -> tuple[int, Any]:
    """Post *body* to the loopback listener; return status and decoded answer."""
    wait_until(lambda: any("taken on 127.0.0.1:" in line for line in running.log))
    (line,) = [line for line in running.log if "taken on 127.0.0.1:" in line]
    connection = http.client.HTTPConnection(line.rpartition(" ")[2], timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", "/v1/snapshots", body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_pushed_rank_is_scraped(exporter: RunningExporter) -> None:
    """What a rank posts to the socket stands on /metrics at the next scrape."""
    assert exporter.push(snapshot(job_id="pushed").to_json()) == (200, {})

    page = exporter.metrics()
    assert 'rankskew_steps_total{job_id="pushed",peer_group="all",rank="0"} 100.0' in page
    assert counted(page, "accepted") >= 1


def test_whole_page_passes_promtool(exporter: RunningExporter) -> None:
    """Every name, type and help text of the exporter is as Prometheus wants it."""
    exporter.push(snapshot(job_id="pushed", sequence=2).to_json())
    checked = promtool_check_metrics(exporter.metrics())

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_live_page_counts_the_gpus(exporter: RunningExporter) -> None:
    """As soon as the driver was asked, the live page knows how many GPUs there are: none here."""

    def visible() -> int | None:
        count: int | None = json.loads(exporter.get("/api/v1/live")[2])["gpus_visible"]
        return count

    wait_until(lambda: visible() is not None)
    assert visible() == 0


def test_exporter_gets_ready_without_gpu_or_driver(exporter: RunningExporter) -> None:
    """A node without GPUs is a normal node: every collector works, and readiness comes."""
    wait_until(lambda: exporter.get("/-/ready")[0] == 200)
    page = exporter.metrics()

    assert re.findall(r'rankskew_collector_success{collector="(\w+)"} 0', page) == []
    assert 'rankskew_collector_success{collector="node_cpu"} 1.0' in page
    assert "\nrankskew_gpus_visible " in page


MEMORY = """MemTotal: 1000 kB
MemFree: 300 kB
MemAvailable: 500 kB
Buffers: 0 kB
Cached: 0 kB
SReclaimable: 0 kB
Shmem: 0 kB
Active: 0 kB
Inactive: 0 kB
Slab: 0 kB
"""


def test_node_is_read_from_the_mounted_procfs(tmp_path: Path) -> None:
    """In a container the flag points at the node's /proc; what cannot be read there has failed."""
    (tmp_path / "meminfo").write_text(MEMORY)
    with running_exporter(tmp_path / "e.sock", f"--path.procfs={tmp_path}") as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        page = running.metrics()

    assert "rankskew_node_memory_total_bytes 1.024e+06" in page
    assert "rankskew_node_memory_available_bytes 512000.0" in page
    assert 'rankskew_collector_success{collector="node_cpu"} 0.0' in page
    assert "rankskew_node_cpu_seconds_total{" not in page


def test_socket_has_the_mode_asked_for(exporter: RunningExporter) -> None:
    """The flag decides who on the node may push."""
    assert stat.S_IMODE(exporter.socket_path.stat().st_mode) == 0o660


def test_loopback_listener_takes_snapshots_too(exporter: RunningExporter) -> None:
    """Where no socket can be shared, a rank may push over loopback."""
    answer = push_over_loopback(exporter, snapshot(job_id="loopback").to_json())

    assert answer == (200, {})
    assert 'job_id="loopback"' in exporter.metrics()


def test_web_listener_takes_no_snapshots(exporter: RunningExporter) -> None:
    """Ingest is not reachable from the network."""
    status, _, _ = exporter.request("POST", "/v1/snapshots", snapshot().to_json())

    assert status == 404


@pytest.mark.parametrize(
    ("body", "status", "result", "sentence"),
    [
        (b"{", 400, "malformed", "not JSON"),
        (b'{"job_id": "\xff"}', 400, "malformed", "not UTF-8"),
        (b"x" * 65_537, 413, "oversized", "larger than 65536 bytes"),
        (b"{}", 422, "invalid", "job_id is missing"),
        (snapshot(rank=4).to_json(), 422, "invalid", "outside a world of 4"),
        (snapshot(job_id="x" * 129).to_json(), 422, "invalid", "at most 128 characters"),
    ],
)
def test_bad_push_is_one_sentence_and_a_count(
    exporter: RunningExporter, body: bytes, status: int, result: str, sentence: str
) -> None:
    """A bad push gets a 4xx that says why, is counted, and leaves /metrics as it was."""
    before = counted(exporter.metrics(), result)
    answered, answer = exporter.push(body)

    assert answered == status
    assert sentence in answer["error"]
    assert answer["error"].count(". ") == 0
    page = exporter.metrics()
    assert counted(page, result) == before + 1
    assert promtool_check_metrics(page).returncode == 0


def test_oversized_push_is_refused_before_it_is_sent(exporter: RunningExporter) -> None:
    """A length over the limit is answered at once, without waiting for the body."""
    connection = UnixConnection(exporter.socket_path)
    connection.putrequest("POST", "/v1/snapshots")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()

    assert status == 413


def test_endless_chunked_push_is_cut_off(exporter: RunningExporter) -> None:
    """A body without a length is refused as soon as it passes the limit."""
    connection = UnixConnection(exporter.socket_path)
    connection.putrequest("POST", "/v1/snapshots")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(66):
        connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
    response = connection.getresponse()
    status, answer = response.status, json.loads(response.read())
    connection.close()

    assert status == 413
    assert "larger than 65536 bytes" in answer["error"]


def test_push_that_breaks_off_harms_nobody(exporter: RunningExporter) -> None:
    """A process killed in mid-push is a count, not a traceback in the log."""
    before = counted(exporter.metrics(), "malformed")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(exporter.socket_path))
        client.sendall(b"POST /v1/snapshots HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
    wait_until(lambda: counted(exporter.metrics(), "malformed") == before + 1)

    assert not [line for line in exporter.log if "Traceback" in line]


def test_flood_of_jobs_leaves_the_page_small(tmp_path: Path) -> None:
    """10,000 invented job names cost a counter, not a series each, and real ranks stay."""
    with running_exporter(tmp_path / "e.sock", "--ranks.jobs-max=8") as running:
        running.push(snapshot(job_id="real").to_json())
        connection = UnixConnection(running.socket_path)
        statuses = []
        for number in range(10_000):
            connection.request("POST", "/v1/snapshots", snapshot(job_id=f"job-{number}").to_json())
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        page = running.metrics()

    assert (statuses.count(200), statuses.count(429)) == (7, 9_993)
    assert counted(page, "no_room") == 9_993
    assert 'rankskew_steps_total{job_id="real"' in page
    assert len(set(re.findall(r'job_id="([^"]*)"', page))) == 8
    assert len(page) < 100_000


# Run as root in the socket's directory: only this directory has to be open to the other user.
PUSH_AS = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(10)
    client.connect(sys.argv[2])
    body = sys.argv[3].encode()
    head = f"POST /v1/snapshots HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
    client.sendall(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
    while answer := client.recv(65536):
        sys.stdout.write(answer.decode())
"""


def push_as(uid: int, running: RunningExporter, body: bytes) -> tuple[int, Any]:
    """Post *body* to the ingest socket as user *uid*; return status and decoded answer."""
    path = running.socket_path
    answered = subprocess.run(
        [sys.executable, "-c", PUSH_AS, str(uid), path.name, body.decode()],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    head, _, answer = answered.stdout.partition("\n\n")
    return int(head.split()[1]), json.loads(answer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a second user")
def test_rank_of_one_user_is_safe_from_another(tmp_path: Path) -> None:
    """The kernel says who pushes: two users' jobs of one name are told apart, root may do both."""
    with running_exporter(tmp_path / "made" / "e.sock", "--ingest.listen-address=127.0.0.1:0") as e:
        first = push_as(NOBODY_UID, e, snapshot(job_id="local", steps=7).to_json())
        other = push_as(1, e, snapshot(job_id="local", steps=8, attempt=1).to_json())
        nobody = push_over_loopback(e, snapshot(job_id="local", steps=8, attempt=1).to_json())
        owner = push_as(NOBODY_UID, e, snapshot(job_id="local", steps=9, sequence=2).to_json())
        page = e.metrics()
        root = e.push(snapshot(job_id="local", steps=10, sequence=3).to_json())
        taken = push_as(NOBODY_UID, e, snapshot(job_id="local", steps=11, sequence=4).to_json())

    refusal = {
        "error": "Rank 0 of job 'local' belongs to another user of this node "
        f"(uid {NOBODY_UID}); set RANKSKEW_JOB_ID to a name that is only yours."
    }
    assert (first, owner, root) == ((200, {}), (200, {}), (200, {}))
    assert (other, nobody) == ((403, refusal), (403, refusal))
    assert 'rankskew_steps_total{job_id="local",peer_group="all",rank="0"} 9.0' in page
    assert counted(page, "forbidden") == 2
    assert taken[0] == 403
    assert "(uid 0)" in taken[1]["error"]


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
    assert max(files) < QUEUED_CONNECTIONS + 128
    assert not [line for line in running.log if "out of system resource" in line]


@pytest.mark.usefixtures("room_for_sockets")
def test_no_more_connections_queue_than_can_be_taken_in_at_once(tmp_path: Path) -> None:
    """What waits while the exporter is held up cannot use up its files when it goes on."""
    path = tmp_path / "e.sock"
    with running_exporter(path) as running, ExitStack() as stack:
        process = psutil.Process(running.process.pid)
        process.suspend()
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        refusals = []
        for _ in range(3 * QUEUED_CONNECTIONS):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            refusals.append(waiting.connect_ex(str(path)) != 0)
        process.resume()
        assert running.get("/metrics")[0] == 200

    assert 0 < refusals.count(False) <= QUEUED_CONNECTIONS + 1


def test_gzip_and_openmetrics_work_over_the_wire(exporter: RunningExporter) -> None:
    """What Prometheus sends is answered compressed and in OpenMetrics."""
    status, headers, body = exporter.get(
        "/metrics",
        **{"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"},
    )

    assert status == 200
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body[:2] == b"\x1f\x8b"


def test_killed_exporter_starts_again_on_its_stale_socket(tmp_path: Path) -> None:
    """After a SIGKILL the next exporter replaces the socket, and one push restores the rank."""
    path = tmp_path / "e.sock"
    with running_exporter(path) as first:
        first.push(snapshot(steps=100).to_json())
        children = psutil.Process(first.process.pid).children(recursive=True)
        first.terminate(signal.SIGKILL)
    assert path.exists()
    wait_until(lambda: not [child for child in children if child.is_running()])

    with running_exporter(path) as second:
        assert "rankskew_steps_total{" not in second.metrics()
        second.push(snapshot(steps=101, sequence=2).to_json())
        assert 'rankskew_steps_total{job_id="llama",peer_group="all",rank="0"} 101.0' in (
            second.metrics()
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_ends_quickly_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Told to end, it closes kept-alive connections, removes its socket and ends its children."""
    path = tmp_path / "e.sock"
    with running_exporter(path) as running:
        wait_until(lambda: running.get("/-/ready")[0] == 200)
        children = psutil.Process(running.process.pid).children(recursive=True)
        rank, scraper = UnixConnection(path), http.client.HTTPConnection("127.0.0.1", running.port)
        for connection, request in ((rank, "/v1/snapshots"), (scraper, "/metrics")):
            connection.request("GET", request)
            connection.getresponse().read()
        seconds = running.terminate(number)
        rank.close()
        scraper.close()

    assert running.process.returncode == 0
    assert seconds < END_SECONDS
    assert not path.exists()
    assert not [child for child in children if child.is_running()]
    assert not [line for line in running.log if "Traceback" in line]


def test_second_exporter_on_the_same_socket_is_refused(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second exporter ends with one line, and the first one goes on."""
    flags = ["--web.listen-address=127.0.0.1:0", f"--ingest.socket={exporter.socket_path}"]

    assert main(["exporter", *flags]) == 1
    complaint = capsys.readouterr().err
    assert re.fullmatch(r"rankskew: another exporter listens on .*\n", complaint)
    assert exporter.push(snapshot(job_id="pushed", sequence=3).to_json())[0] == 200


def test_port_in_use_is_one_line(
    exporter: RunningExporter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A taken port ends the start with what to do, and no socket is left behind."""
    path = tmp_path / "e.sock"
    flags = [f"--web.listen-address=127.0.0.1:{exporter.port}", f"--ingest.socket={path}"]

    assert main(["exporter", *flags]) == 1
    complaint = capsys.readouterr().err
    assert "Address already in use; stop what holds it or choose another --web.listen-address" in (
        complaint
    )
    assert complaint.count("\n") == 1
    assert not path.exists()


def test_public_ingest_address_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ingest listener on a public address is a usage error; the socket made before goes."""
    path = tmp_path / "e.sock"
    flags = ["--web.listen-address=127.0.0.1:0", f"--ingest.socket={path}"]

    assert main(["exporter", *flags, "--ingest.listen-address=0.0.0.0:9918"]) == 2
    assert "is not a loopback address" in capsys.readouterr().err
    assert not path.exists()


def test_wrong_flag_of_a_real_process_is_one_line() -> None:
    """The process, too, ends with status 2 and a single line on standard error."""
    ended = subprocess.run(
        [*RunningExporter.COMMAND, "--ranks.max=none"],
        cwd=RunningExporter.DIRECTORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"rankskew: --ranks.max: 'none' is not .*\n", ended.stderr)

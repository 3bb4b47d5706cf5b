"""A real exporter process takes in good and bad pushes, serves its pages, and ends cleanly."""

import http.client
import json
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from exporter.__main__ import main
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
    wait_until(lambda: any("taken on 127.0.0.1:" in line for line in exporter.log))
    (line,) = [line for line in exporter.log if "taken on 127.0.0.1:" in line]
    connection = http.client.HTTPConnection(line.rpartition(" ")[2], timeout=PATIENCE_SECONDS)
    connection.request("POST", "/v1/snapshots", snapshot(job_id="loopback").to_json())
    status = connection.getresponse().status
    connection.close()

    assert status == 200
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

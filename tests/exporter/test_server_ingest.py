"""A real exporter takes good pushes; a bad one, or a flood of them, does no harm."""

import re
import socket
from pathlib import Path

import pytest

from benchmarks.hostile.attack import Plan, run
from tests.exporter.running import (
    RunningExporter,
    UnixConnection,
    counted,
    promtool_check_metrics,
    running_exporter,
    wait_until,
)
from tests.exporter.snapshots import snapshot


def test_pushed_rank_is_scraped(exporter: RunningExporter) -> None:
    """From the socket, or over loopback where none can be shared; not from the network."""
    assert exporter.push(snapshot(job_id="pushed").to_json()) == (200, {})
    assert exporter.push_over_loopback(snapshot(job_id="loopback").to_json()) == (200, {})
    assert exporter.request("POST", "/v1/snapshots", snapshot().to_json())[0] == 404

    page = exporter.metrics()
    for job in ("pushed", "loopback"):
        assert f'rankskew_steps_total{{job_id="{job}",peer_group="all",rank="0"}} 100.0' in page
    assert counted(page, "accepted") >= 2


@pytest.mark.parametrize(
    ("body", "status", "result", "sentence"),
    [
        (b'{"job_id": "\xff"}', 400, "malformed", "not UTF-8"),
        (b"x" * 65_537, 413, "oversized", "larger than 65536 bytes"),
        (snapshot(job_id="x" * 129).to_json(), 422, "invalid", "at most 128 characters"),
    ],
)
def test_bad_push_is_one_sentence_and_a_count(
    exporter: RunningExporter, body: bytes, status: int, result: str, sentence: str
) -> None:
    """A bad push gets a 4xx with the reason, is counted, and leaves /metrics as it was."""
    before = counted(exporter.metrics(), result)
    answered, answer = exporter.push(body)

    assert answered == status
    assert sentence in answer["error"]
    assert answer["error"].count(". ") == 0
    page = exporter.metrics()
    assert counted(page, result) == before + 1
    assert promtool_check_metrics(page).returncode == 0


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


def test_hostile_input_breaks_nothing(tmp_path: Path) -> None:
    """No 5xx, no traceback, no growth, and proper pushes and scrapes go on in between.

    `make fuzz` tries many more.
    """
    rows = run(tmp_path, Plan(bodies=2_000, requests=300, every=500))

    measured = {row["what"]: row["measured"] for row in rows}
    assert measured["of these taken"] > 500
    assert measured["of these refused"] > 500
    assert measured["of their answers 2xx"] > 20
    assert measured["of their answers 4xx"] > 100
    assert measured["turned away for want of room (503)"] == 0

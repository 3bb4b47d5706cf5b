"""A real exporter takes good pushes, keeps users apart, and outlives floods."""

import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from exporter.listeners.sockets import BACKLOG
from tests.exporter.running import (
    RunningExporter,
    UnixConnection,
    counted,
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

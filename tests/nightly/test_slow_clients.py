"""Slow clients by the hundred on both listeners, beside one scrape a second: nobody else notices.

They connect and say nothing, send a byte a second, or ask and never read; one that is thrown out
comes back a second later.
"""

import asyncio
import os
import resource
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from benchmarks.report import Row
from devstack.load import RANK, RANKS, beside, pushing, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from exporter.listeners.connection import MOST_PIPELINED
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH
from tests.nightly.figures import full_or_short, hold, row
from tests.nightly.test_hostile import NUMBERS, POST, valid

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

CLIENTS: Final = int(full_or_short(500, 100))
CROWD_ADDRESS, OTHER_ADDRESS = "127.0.0.1", "127.0.0.2"
NOBODY_UID: Final = 65534

Say = Callable[[socket.socket, bytes], Awaitable[None]]


async def say_nothing(connection: socket.socket, _: bytes) -> None:
    """Wait until the other side closes."""
    while await asyncio.get_running_loop().sock_recv(connection, 4096):
        await asyncio.sleep(1)


async def send_a_byte_a_second(connection: socket.socket, request: bytes) -> None:
    """Send *request* so slowly that it never ends."""
    for byte in request:
        await asyncio.get_running_loop().sock_sendall(connection, bytes([byte]))
        await asyncio.sleep(1)


async def never_read(connection: socket.socket, request: bytes) -> None:
    """Ask as often as one may at once, read no answer, and come back later for more."""
    await asyncio.get_running_loop().sock_sendall(connection, request * MOST_PIPELINED)
    await asyncio.sleep(10)


WAYS: Final[tuple[Say, ...]] = (say_nothing, send_a_byte_a_second, never_read)


async def slow_client(address: Any, request: bytes, say: Say) -> None:
    """Come again and again."""
    while True:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with suppress(OSError), socket.socket(family) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if family == socket.AF_INET:
                connection.bind((CROWD_ADDRESS, 0))
            await asyncio.get_running_loop().sock_connect(connection, address)
            await say(connection, request)
        await asyncio.sleep(1)


async def crowd(web: str, ingest: str) -> None:
    """Be CLIENTS slow clients of each listener."""
    host, _, port = web.rpartition(":")
    body = valid("slow")
    doors: tuple[tuple[Any, bytes], ...] = (
        ((host, int(port)), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
        (ingest, POST % (SNAPSHOT_PATH.encode(), len(body), body)),
    )
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            for address, request in doors:
                group.create_task(slow_client(address, request, WAYS[number % len(WAYS)]))


def be_slow(web: str, ingest: str, uid: int | None) -> None:
    """Be the crowd; as user *uid* where that is given."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    asyncio.run(crowd(web, ingest))


def unheard(page: bytes) -> int:
    """Return how many of the ranks that push are not on *page*, or are silent."""
    heard = page.count(b'rankskew_steps_total{job_id="%b"' % RANK.job_id.encode())
    silent = page.count(b'rankskew_rank_silent_seconds{job_id="%b"' % RANK.job_id.encode())
    return RANKS - heard + silent


def newcomer_is_taken(exporter: ExporterProcess) -> bool:
    """Return whether a rank of this user that connects now can push."""
    connection = open_connection(exporter.target)
    try:
        connection.request("POST", SNAPSHOT_PATH, valid("newcomer", 0, next(NUMBERS)))
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def watched(
    exporter: ExporterProcess, what: str, source: str, seconds: int, most: int | None
) -> list[Row]:
    """Scrape once a second from *source*; return how it went, *most* failures being allowed."""
    times: list[float] = []
    silent = refused = 0
    for _ in range(seconds):
        time.sleep(1)
        began = time.perf_counter()
        with suppress(OSError):
            silent = max(silent, unheard(scrape(exporter.address, source=source)))
            times.append(1e3 * (time.perf_counter() - began))
        refused += not newcomer_is_taken(exporter)
    return [
        row(f"{what}: scrapes", seconds),
        row(f"{what}: of these failed", seconds - len(times), most),
        row(f"{what}: time of a scrape, median ms", statistics.median(times) if times else 0.0),
        row(f"{what}: time of a scrape, longest ms", max(times, default=0.0)),
        row(f"{what}: ranks unheard", silent, 0),
        row(f"{what}: new ranks refused", refused, most),
        row(f"{what}: open files", psutil.Process(exporter.pid).num_fds()),
    ]


def test_crowd_of_slow_clients_is_not_noticed(tmp_path: Path) -> None:
    """No scrape from elsewhere fails, and each rank of another user is heard.

    Who has the address of the crowd, or is a new rank of its user, may be turned away.
    """
    seconds = int(full_or_short(60, 8))
    uid = NOBODY_UID if os.geteuid() == 0 else None
    tmp_path.chmod(0o755)  # The crowd is another user's, if this is root.
    with ExporterProcess(tmp_path) as exporter, pushing(exporter):
        wait_for(lambda: None if unheard(scrape(exporter.address)) else True, 20)
        rows = watched(exporter, "undisturbed", OTHER_ADDRESS, seconds, 0)
        slow = (be_slow, exporter.address, str(exporter.socket))
        with beside(*slow, uid):
            time.sleep(5)  # By then all have come, and been thrown out or not.
            what = "beside slow clients of another address and user"
            rows += watched(exporter, what, OTHER_ADDRESS, seconds, 0 if uid else None)
        with beside(*slow, None):
            time.sleep(5)
            rows += watched(exporter, "with their address and user", CROWD_ADDRESS, seconds, None)
    hold("slow_clients", rows)

"""Slow clients by the hundred on both listeners, beside one scrape a second: does it notice?

They connect and say nothing, send a byte a second, or ask and never read; one that is thrown out
comes back a second later. Exits 1 when a scrape from another address fails, or a rank of another
user goes unheard.
"""

import asyncio
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.hostile.bodies import valid
from benchmarks.report import Row, measured_table, write
from benchmarks.scrape.load import RANKS, beside, pushing, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from exporter.listeners.connection import MOST_PIPELINED
from rank_probe.report.endpoint import open_connection
from rank_probe.wire.snapshot import SNAPSHOT_PATH

CROWD_ADDRESS: Final = "127.0.0.1"
OTHER_ADDRESS: Final = "127.0.0.2"
NOBODY_UID: Final = 65534
BACK_SECONDS: Final = 1.0
# Whoever reads no answer for so long has been cut off, or waits for no more.
DEAF_SECONDS: Final = 10.0
# By then all of the crowd have come, and been thrown out or not.
CROWD_SECONDS: Final = 5.0
BESIDE: Final = "beside slow clients of another address and user"
SAME: Final = "the same, and the scraper and new ranks have their address and user"

Say = Callable[[socket.socket, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many clients there are on each listener, and how long each part takes."""

    clients: int = 500
    undisturbed_seconds: float = 60.0
    crowded_seconds: float = 120.0
    same_address_seconds: float = 60.0


async def _nothing(connection: socket.socket, _: bytes) -> None:
    """Say nothing until the other side closes."""
    while await asyncio.get_running_loop().sock_recv(connection, 4096):
        await asyncio.sleep(BACK_SECONDS)


async def _a_byte_a_second(connection: socket.socket, request: bytes) -> None:
    for byte in request:
        await asyncio.get_running_loop().sock_sendall(connection, bytes([byte]))
        await asyncio.sleep(1)


async def _never_read(connection: socket.socket, request: bytes) -> None:
    """Ask as often as one may at once, read no answer, and come back later for more."""
    await asyncio.get_running_loop().sock_sendall(connection, request * MOST_PIPELINED)
    await asyncio.sleep(DEAF_SECONDS)


WAYS: Final[tuple[Say, ...]] = (_nothing, _a_byte_a_second, _never_read)


async def _slow_client(family: int, address: Any, request: bytes, say: Say) -> None:
    while True:
        with suppress(OSError), socket.socket(family) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if family == socket.AF_INET:
                connection.bind((CROWD_ADDRESS, 0))
            await asyncio.get_running_loop().sock_connect(connection, address)
            await say(connection, request)
        await asyncio.sleep(BACK_SECONDS)


async def _crowd(web: str, ingest: str, clients: int) -> None:
    host, _, port = web.rpartition(":")
    body = valid("slow", 0)
    post = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    doors = (
        (socket.AF_INET, (host, int(port)), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
        (socket.AF_UNIX, ingest, post % (SNAPSHOT_PATH.encode(), len(body), body)),
    )
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            for family, address, request in doors:
                say = WAYS[number % len(WAYS)]
                group.create_task(_slow_client(family, address, request, say))


def be_slow(web: str, ingest: str, clients: int, uid: int | None) -> None:
    """Be *clients* slow clients of each listener; as user *uid* where that is given."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    asyncio.run(_crowd(web, ingest, clients))


def watch(exporter: ExporterProcess, what: str, source: str, seconds: float) -> dict[str, Any]:
    """Scrape once a second from *source* for that long; return how it went."""
    process = psutil.Process(exporter.pid)
    times = []
    failed = most_unheard = newcomers_refused = files = 0
    began = time.monotonic()
    for second in range(round(seconds)):
        time.sleep(max(0.0, began + second - time.monotonic()))
        started = time.perf_counter()
        try:
            page = scrape(exporter.address, source=source)
            times.append((time.perf_counter() - started) * 1e3)
            most_unheard = max(most_unheard, unheard(page))
        except OSError:
            failed += 1
        newcomers_refused += not _newcomer_is_taken(exporter, second)
        files = max(files, process.num_fds())
    return {
        "what": what,
        "scrapes": len(times) + failed,
        "failed": failed,
        "p50 ms": statistics.median(times) if times else None,
        "p99 ms": _p99(times),
        "longest ms": max(times, default=None),
        "ranks unheard": most_unheard,
        "new ranks refused": newcomers_refused,
        "most open files": files,
    }


def _p99(times: list[float]) -> float | None:
    # Inclusive: beyond the longest of so few there is nothing to estimate.
    return statistics.quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else None


def unheard(page: bytes) -> int:
    """Return how many of the ranks that push are not on *page*, or are silent."""
    heard = page.count(b'rankskew_steps_total{job_id="bench"')
    return RANKS - heard + page.count(b'rankskew_rank_silent_seconds{job_id="bench"')


def _newcomer_is_taken(exporter: ExporterProcess, number: int) -> bool:
    """Say whether a rank of this user that connects now can push."""
    connection = open_connection(exporter.target)
    try:
        connection.request("POST", SNAPSHOT_PATH, valid("newcomer", number))
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def measure(directory: Path, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield a row undisturbed, one beside a crowd, and one for who has its address and user."""
    directory.chmod(0o755)  # The crowd is another user's, if this is root.
    with ExporterProcess(directory) as exporter, pushing(exporter):
        if wait_for(lambda: None if unheard(_page(exporter)) else True, 20) is None:
            raise exporter.failure(f"did not show {RANKS} ranks in 20 s")
        yield watch(exporter, "undisturbed", OTHER_ADDRESS, plan.undisturbed_seconds)
        crowd = (be_slow, exporter.address, str(exporter.socket), plan.clients)
        with beside(*crowd, NOBODY_UID if os.geteuid() == 0 else None):
            time.sleep(CROWD_SECONDS)
            yield watch(exporter, BESIDE, OTHER_ADDRESS, plan.crowded_seconds)
        with beside(*crowd, None):
            time.sleep(CROWD_SECONDS)
            yield watch(exporter, SAME, CROWD_ADDRESS, plan.same_address_seconds)


def _page(exporter: ExporterProcess) -> bytes:
    return scrape(exporter.address)


def is_kept(rows: Sequence[dict[str, Any]]) -> bool:
    """Say whether no scrape from another address failed and every rank was heard throughout."""
    return not any(row["ranks unheard"] or (row["failed"] and row["what"] != SAME) for row in rows)


def table_of(result: Row) -> str:
    """Return how scrapes went undisturbed, beside slow clients, and as one of them."""
    cells = [
        (
            row["what"],
            f"{row['failed']} of {row['scrapes']}",
            _times(row),
            str(row["ranks unheard"]),
            f"{row['new ranks refused']} of {row['scrapes']}",
            str(row["most open files"]),
        )
        for row in result["rows"]
    ]
    header = (
        *("", "scrapes failed", "median time of a scrape", "ranks unheard", "new ranks refused"),
        "files of the exporter",
    )
    return measured_table(result, header, cells)


def _times(row: Row) -> str:
    median, p99, longest = (
        "none" if row[name] is None else f"{row[name]:.1f}"
        for name in ("p50 ms", "p99 ms", "longest ms")
    )
    return f"{median} (p99 {p99}, longest {longest}) ms"


def main() -> int:
    """Measure, tell, and say whether the crowd was not noticed."""
    with tempfile.TemporaryDirectory() as directory:
        rows = list(measure(Path(directory), Plan()))
    write("slow_clients", rows, tables={"slow_clients": table_of})
    return int(not is_kept(rows))


if __name__ == "__main__":
    sys.exit(main())

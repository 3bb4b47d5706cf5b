"""Serves the pages of thousands of simulated nodes from one port: /node/17 is the page of node 17.

python -m benchmarks.scale_load PORT RANKS JOBS join|block read|all
"""

import asyncio
import gzip
import signal
import sys
import time
from collections.abc import Callable

from benchmarks.scale_job import RANKS_PER_NODE, Job
from benchmarks.scale_page import Node, fleet
from exporter.scrape.exposition import GZIP_LEVEL

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def simulated_jobs(ranks: int, jobs: int) -> list[Job]:
    """Return *jobs* equal jobs of whole nodes, *ranks* in all; only the first has a straggler."""
    each = ranks // jobs
    if jobs * each != ranks or each % RANKS_PER_NODE:
        raise ValueError(f"{ranks} ranks are not {jobs} equal jobs of nodes of {RANKS_PER_NODE}")
    return [Job(f"job-{n:04}", each, planted(each) if n == 0 else None) for n in range(jobs)]


def planted(ranks: int) -> int:
    """Return the late rank in a job of *ranks*: neither at an end nor first on a node."""
    return ranks // 3


class Fleet:
    """The nodes, and the time since they started."""

    def __init__(self, nodes: list[Node], clock: Callable[[], float] = time.time) -> None:
        self._nodes = nodes
        self._clock = clock
        self._began = clock()

    def answer(self, request: bytes) -> bytes:
        """Return the whole HTTP answer to a *request*, compressed if it allows that."""
        path = request.split(b" ", 2)[1]
        if path == b"/-/ready":
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        now = self._clock()
        page = self._nodes[int(path.rpartition(b"/")[2])].page(now - self._began, now).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\n"
        if b"gzip" in request:
            page = gzip.compress(page, GZIP_LEVEL)
            head += "Content-Encoding: gzip\r\n"
        return f"{head}Content-Length: {len(page)}\r\n\r\n".encode() + page


class Connection(asyncio.Protocol):
    """One keep-alive connection of a scraper, which waits for an answer before it asks again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"\r\n\r\n") and self._transport is not None:
            request, self._received = self._received, b""
            self._transport.write(self._fleet.answer(request))


async def serve(port: int, fleet: Fleet) -> None:
    """Answer on the loopback *port* until SIGTERM."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Prometheus opens a connection for each node.
    server = await loop.create_server(lambda: Connection(fleet), "127.0.0.1", port, backlog=4_096)
    async with server:
        await stopped.wait()


def main() -> None:
    """Serve as the command line specifies."""
    port, ranks, jobs, source, series = sys.argv[1:]
    nodes = fleet(simulated_jobs(int(ranks), int(jobs)), source == "join", series == "all")
    asyncio.run(serve(int(port), Fleet(nodes)))


if __name__ == "__main__":
    main()

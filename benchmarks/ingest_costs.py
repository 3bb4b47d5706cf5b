"""What a push costs the exporter: as it is now, and through a FastAPI route.

Each way is an ingest listener in its own process, side by side in one run. First one client pushes
to each without a pause. Then ranks push to each once a second, as on a node: a process that is
idle between pushes handles each one with cold caches.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from benchmarks.report import write
from benchmarks.scrape.load import RANKS, Rank
from devstack.process import wait_for
from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.schema import parse
from exporter.listeners.connection import Bounds
from exporter.listeners.listener import Listener
from exporter.listeners.sockets import UnixListener
from exporter.operator.levels import Orders
from exporter.ranks.store import RankStore
from rank_probe.report.push import Pusher
from rank_probe.wire.snapshot import SNAPSHOT_PATH

SECONDS = 90.0
PUSHES = 20_000
PACKAGES = ("fastapi", "starlette", "uvicorn", "httptools", "pydantic")


def as_it_is() -> ASGIApp:
    """Return the exporter's application: pushes are plain ASGI, FastAPI has the rest."""
    store = RankStore()
    return IngestApp(store, IngestCounts(), Orders(store), 65_536)


def by_a_route() -> ASGIApp:
    """Return an application that does the same work in a FastAPI route."""
    app = FastAPI()
    store = RankStore()
    orders = Orders(store)

    @app.post(SNAPSHOT_PATH)
    async def push(request: Request) -> dict[str, str]:
        snapshot, _ = parse(await request.body())
        orders.forget_ended()
        store.put(snapshot, request.state.peer)
        level = orders.level_for(snapshot, request.state.peer)
        return {} if level is None else {"level": level}

    return app


def serve(make: Callable[[], ASGIApp], path: Path) -> None:
    """Serve what *make* returns on a socket at *path*, until killed."""
    unix = UnixListener(path, 0o600, "--ingest.socket")
    bounds = Bounds(64, b"{}", b"application/json")
    asyncio.run(Listener([unix.socket], make(), bounds).serve_until_told())


class Way:
    """One way to take pushes, running."""

    def __init__(self, make: Callable[[], ASGIApp], directory: Path) -> None:
        path = directory / f"{make.__name__}.sock"
        spawn = multiprocessing.get_context("spawn")
        self.served: BaseProcess = spawn.Process(target=serve, args=(make, path), daemon=True)
        self.served.start()
        self.endpoint = f"unix:{path}"
        if wait_for(lambda: path.exists() or None, 20) is None:
            raise OSError(f"{make.__name__} did not start in 20 s")
        self._process = psutil.Process(self.served.pid)

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used so far."""
        return sum(self._process.cpu_times()[:2])

    def push(self, pushes: int) -> float:
        """Push so often without a pause; return the CPU time of each in microseconds."""
        rank = Rank(0)
        pusher = Pusher(self.endpoint, rank)
        before = self.cpu_seconds()
        for _ in range(pushes):
            pusher.push()
        if pusher.failed_pushes:
            raise OSError(f"{self.endpoint} refused {pusher.failed_pushes} of {pushes} pushes")
        return (self.cpu_seconds() - before) / pushes * 1e6


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        makers = {"plain ASGI, as it is": as_it_is, "a route of FastAPI": by_a_route}
        ways = {name: Way(make, Path(directory)) for name, make in makers.items()}
        for way in ways.values():
            way.push(PUSHES // 10)  # Imports and caches.
        a_push = {name: way.push(PUSHES) for name, way in ways.items()}
        for way in ways.values():
            for rank in range(1, RANKS):
                Pusher(way.endpoint, Rank(rank)).start()
        time.sleep(2.0)
        before = {name: way.cpu_seconds() for name, way in ways.items()}
        time.sleep(SECONDS)
        rows: list[dict[str, Any]] = [
            {
                "way": name,
                "without a pause, CPU µs a push": a_push[name],
                f"{RANKS - 1} ranks, share of a core": (way.cpu_seconds() - before[name]) / SECONDS,
            }
            for name, way in ways.items()
        ]
    write("ingest_costs", rows, PACKAGES)


if __name__ == "__main__":
    main()

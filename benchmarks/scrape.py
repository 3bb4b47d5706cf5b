"""What a scrape costs: 8 stub GPUs with PCIe calls that block 20 ms per direction, 8 ranks pushing.

Three phases of one exporter: its responses at 20 scrapes per second, its share of a core at one
scrape every 15 s, and its memory over thousands of scrapes.
"""

import multiprocessing
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import write
from fleet_simulator.stack.parts import ExporterProcess
from fleet_simulator.stack.process import wait_for
from rank_probe.report.push import Pusher
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES
from tests import nvmlstub

GPUS = RANKS = 8
STEPS_A_PUSH = 10

RANK = Snapshot(
    job_id="bench",
    peer_group="all",
    rank=0,
    world_size=RANKS,
    attempt=0,
    pid=1,
    started_timestamp_seconds=1.0,
    sequence=1,
    heartbeat_timestamp_seconds=2.0,
    steps=1000,
    stage_seconds=dict.fromkeys(STAGES, 12.345678),
    busy_seconds=100.0,
    busy_seconds_squared=10.0,
    stage="forward",
    stage_elapsed_seconds=0.1,
    sync_floor_seconds=0.004,
    last_step_timestamp_seconds=2.0,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured; the defaults are those that the documented promise needs."""

    timed_scrapes: int = 1_000
    pause_seconds: float = 0.05
    idle_seconds: float = 90.0
    interval_seconds: float = 15.0
    # Memory is compared between these; by the first one, everything that is cached has been cached.
    scrapes_before: int = 2_000
    scrapes_after: int = 20_000


class Rank:
    """A rank that steps: each push is a new snapshot."""

    def __init__(self, rank: int, ranks: int = RANKS) -> None:
        self._snapshot = replace(RANK, rank=rank, world_size=ranks)

    @property
    def steps(self) -> int:
        """How many steps it has counted."""
        return self._snapshot.steps

    def __call__(self) -> Snapshot:
        before = self._snapshot
        steps = before.steps + STEPS_A_PUSH
        self._snapshot = replace(before, sequence=before.sequence + 1, steps=steps)
        return self._snapshot


def push_for_ever(endpoint: str) -> None:
    """Act as RANKS ranks that each push once a second, as real ones do."""
    for rank in range(RANKS):
        Pusher(endpoint, Rank(rank)).start()
    signal.pause()


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run *work* in its own process while the block runs, so that it disturbs no timing."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def pushing(exporter: ExporterProcess) -> AbstractContextManager[None]:
    """Have ranks push while the block runs."""
    return beside(push_for_ever, exporter.target)


class Family:
    """The exporter's process and its NVML child's."""

    def __init__(self, exporter: ExporterProcess) -> None:
        parent, *children = (each for each in exporter.family() if each.is_running())
        self._parts = {"exporter": [parent], "NVML child": children}

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time that each has used so far."""
        return {
            name: sum(sum(process.cpu_times()[:2]) for process in processes)
            for name, processes in self._parts.items()
        }

    def memory_mebibytes(self) -> dict[str, float]:
        """Return the resident memory of each."""
        return {
            name: sum(_resident(process) for process in processes) / 2**20
            for name, processes in self._parts.items()
        }


def _resident(process: psutil.Process) -> int:
    resident: int = process.memory_info().rss
    return resident


def scrape(address: str, accept: str = "*/*", source: str = "") -> bytes:
    """Return the page at *address*, over a new connection, as Prometheus scrapes every 15 s.

    The connection comes from the address *source* if there is one.
    Parsed by hand: http.client's parsing takes a fifth of the measured time.
    """
    host, _, port = address.rpartition(":")
    source_address = (source, 0) if source else None
    with socket.create_connection((host, int(port)), 10, source_address) as connection:
        wanted = f"Host: node\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        connection.sendall(f"GET /metrics HTTP/1.1\r\n{wanted}".encode())
        answer = bytearray()
        while part := connection.recv(2**20):
            answer += part
    head, _, page = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"no page from {address}: {head.decode(errors='replace')}")
    return bytes(page)


def answers(address: str, plan: Plan) -> dict[str, Any]:
    """Scrape as several impatient scrapers would; return sizes and times."""
    times = []
    body = b""
    for _ in range(plan.timed_scrapes):
        started = time.perf_counter()
        body = scrape(address)
        times.append((time.perf_counter() - started) * 1e3)
        time.sleep(plan.pause_seconds)
    return {
        "scrapes": plan.timed_scrapes,
        "series": sum(1 for line in body.splitlines() if line and not line.startswith(b"#")),
        "bytes": len(body),
        "p50 ms": statistics.median(times),
        "p99 ms": statistics.quantiles(times, n=100)[98],
    }


def shares(address: str, plan: Plan, family: Family) -> dict[str, float]:
    """Scrape as Prometheus does; return the share of a core and the memory of each process."""
    before = family.cpu_seconds()
    started = time.monotonic()
    while time.monotonic() < started + plan.idle_seconds:
        time.sleep(plan.interval_seconds)
        scrape(address)
    seconds = time.monotonic() - started
    used = {name: after - before[name] for name, after in family.cpu_seconds().items()}
    memory = family.memory_mebibytes()
    return {
        "CPU, share of a core": sum(used.values()) / seconds,
        **{f"CPU of the {name}": cpu_seconds / seconds for name, cpu_seconds in used.items()},
        "RSS MiB, NVML child included": sum(memory.values()),
        **{f"RSS MiB of the {name}": mebibytes for name, mebibytes in memory.items()},
    }


def growth(address: str, plan: Plan, family: Family) -> dict[str, float]:
    """Scrape without a pause; return the memory of all processes on the way and at the end."""
    rows = {}
    done = 0
    for scrapes in (plan.scrapes_before, plan.scrapes_after):
        for _ in range(scrapes - done):
            scrape(address)
        done = scrapes
        rows[f"RSS MiB after {scrapes:,} scrapes"] = sum(family.memory_mebibytes().values())
    return rows


def measure(directory: Path, plan: Plan, is_pcie_sampled: bool) -> dict[str, Any]:
    """Measure an exporter under that load and return the figures.

    The GPUs' PCIe throughput comes from GPM, as from Hopper on, or from a call that blocks.
    """
    stub = nvmlstub.environment(nvmlstub.build(directory), gpus=GPUS)
    environment = stub | {"STUB_SAMPLED_PCIE": str(int(is_pcie_sampled))}
    with ExporterProcess(directory, environment=environment) as exporter, pushing(exporter):
        address = exporter.address
        if wait_for(lambda: _shows_all(scrape(address)), 20) is None:
            raise exporter.failure(f"did not show {RANKS} ranks in 20 s")
        family = Family(exporter)
        return {
            "gpus": GPUS,
            "ranks": RANKS,
            "PCIe": "blocking call" if is_pcie_sampled else "GPM",
            # The share of a core first: the other phases warm caches and fill memory.
            **shares(address, plan, family),
            **answers(address, plan),
            **growth(address, plan, family),
        }


def _shows_all(page: bytes) -> bool | None:
    return page.count(b"rankskew_steps_total{") == RANKS or None


def main() -> None:
    """Measure and print."""
    rows = []
    for is_pcie_sampled in (True, False):
        with tempfile.TemporaryDirectory() as directory:
            rows.append(measure(Path(directory), Plan(), is_pcie_sampled))
    write("scrape", rows)


if __name__ == "__main__":
    main()

"""What a scrape costs: 8 stub GPUs whose PCIe call blocks 20 ms a direction, 8 ranks pushing."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import write
from demo.process import get, wait_for
from demo.stack import Exporter
from rank_probe.push import Pusher
from rank_probe.snapshot import Snapshot
from rank_probe.stages import STAGES
from tests import nvmlstub

GPUS = RANKS = 8
SCRAPES = 300
PAUSE_SECONDS = 0.05

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


@contextmanager
def pushing(exporter: Exporter) -> Iterator[None]:
    """Have RANKS ranks push once a second, as real ones do, while the block runs."""
    with ExitStack() as stack:
        for rank in range(RANKS):
            pusher = Pusher(exporter.target, lambda rank=rank: replace(RANK, rank=rank))  # type: ignore[misc]
            pusher.start()
            stack.callback(pusher.stop)
        yield


def scrape(url: str) -> tuple[float, bytes]:
    """Return one scrape's milliseconds and body."""
    started = time.perf_counter()
    body = get(url)
    return (time.perf_counter() - started) * 1e3, body


def measure(directory: Path) -> dict[str, Any]:
    """Scrape an exporter under that load and return the figures."""
    os.environ |= nvmlstub.environment(nvmlstub.build(directory), gpus=GPUS)
    with Exporter(directory) as exporter, pushing(exporter):
        url = f"{exporter.url}/metrics"
        if wait_for(lambda: get(url).count(b"rankskew_steps_total{") == RANKS or None, 20) is None:
            raise exporter.failure(f"did not show {RANKS} ranks in 20 s")
        family = [process for process in exporter.family() if process.is_running()]
        before = sum(sum(process.cpu_times()[:2]) for process in family)
        started = time.monotonic()
        times = []
        for _ in range(SCRAPES):
            milliseconds, body = scrape(url)
            times.append(milliseconds)
            time.sleep(PAUSE_SECONDS)
        seconds = time.monotonic() - started
        cpu = sum(sum(process.cpu_times()[:2]) for process in family) - before
        memory = sum(process.memory_info().rss for process in family)
    samples = sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))
    return {
        "gpus": GPUS,
        "ranks": RANKS,
        "scrapes": SCRAPES,
        "series": samples,
        "bytes": len(body),
        "p50 ms": statistics.median(times),
        "p99 ms": statistics.quantiles(times, n=100)[98],
        "RSS MiB, NVML child included": memory / 2**20,
        "CPU, share of a core": cpu / seconds,
    }


def main() -> None:
    """Measure and tell."""
    with tempfile.TemporaryDirectory() as directory:
        write("scrape", [measure(Path(directory))])


if __name__ == "__main__":
    main()

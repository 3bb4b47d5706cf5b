"""What a scrape costs: 8 stub GPUs with PCIe calls that block 20 ms per direction, 8 ranks pushing.

Three phases of one exporter: its responses at 20 scrapes per second, its share of a core at one
scrape every 15 s, and its memory over thousands of scrapes.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.report import Row, measured_with, number, write
from devstack.load import RANKS, pushing, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from generators.markdown import table
from tests import nvmlstub

GPUS = 8
TIMED_SCRAPES, PAUSE_SECONDS = 1_000, 0.05
IDLE_SECONDS, INTERVAL_SECONDS = 90.0, 15.0
# Memory is compared between these numbers of scrapes; by the first, all caches are full.
SCRAPES: Final = (2_000, 20_000)


class Family:
    """The exporter's process and its NVML child's."""

    def __init__(self, exporter: ExporterProcess) -> None:
        parent, *children = (each for each in exporter.family() if each.is_running())
        self._parts = {"exporter": [parent], "NVML child": children}

    def sums(self, read: Callable[[psutil.Process], float]) -> dict[str, float]:
        """Return the sum of *read* over the processes of each part."""
        return {name: sum(map(read, processes)) for name, processes in self._parts.items()}


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that *process* has used so far."""
    return float(sum(process.cpu_times()[:2]))


def mebibytes(process: psutil.Process) -> float:
    """Return the resident memory of *process* in MiB."""
    return float(process.memory_info().rss) / 2**20


def answers(address: str) -> dict[str, Any]:
    """Scrape as several impatient scrapers would; return sizes and times."""
    times = []
    body = b""
    for _ in range(TIMED_SCRAPES):
        started = time.perf_counter()
        body = scrape(address)
        times.append((time.perf_counter() - started) * 1e3)
        time.sleep(PAUSE_SECONDS)
    return {
        "scrapes": TIMED_SCRAPES,
        "series": sum(1 for line in body.splitlines() if line and not line.startswith(b"#")),
        "bytes": len(body),
        "p50 ms": statistics.median(times),
        "p99 ms": statistics.quantiles(times, n=100)[98],
    }


def shares(address: str, family: Family) -> dict[str, float]:
    """Scrape as Prometheus does; return the share of a core and the memory of each process."""
    before = family.sums(cpu_seconds)
    started = time.monotonic()
    while time.monotonic() < started + IDLE_SECONDS:
        time.sleep(INTERVAL_SECONDS)
        scrape(address)
    seconds = time.monotonic() - started
    used = {name: after - before[name] for name, after in family.sums(cpu_seconds).items()}
    memory = family.sums(mebibytes)
    return {
        "CPU, share of a core": sum(used.values()) / seconds,
        **{f"CPU of the {name}": cpu / seconds for name, cpu in used.items()},
        "RSS MiB, NVML child included": sum(memory.values()),
        **{f"RSS MiB of the {name}": resident for name, resident in memory.items()},
    }


def growth(address: str, family: Family) -> dict[str, float]:
    """Scrape without a pause; return the memory of all processes on the way and at the end."""
    rows = {}
    done = 0
    for scrapes in SCRAPES:
        for _ in range(scrapes - done):
            scrape(address)
        done = scrapes
        rows[f"RSS MiB after {scrapes:,} scrapes"] = sum(family.sums(mebibytes).values())
    return rows


def measure(directory: Path, is_pcie_sampled: bool) -> dict[str, Any]:
    """Measure an exporter under that load and return the figures.

    The GPUs' PCIe throughput comes from GPM, as on Hopper and later, or from a blocking call.
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
            **shares(address, family),
            **answers(address),
            **growth(address, family),
        }


def _shows_all(page: bytes) -> bool | None:
    return page.count(b"rankskew_steps_total{") == RANKS or None


def table_of(result: Row) -> str:
    """Return the cost of an exporter, a row for each figure and a column per source of PCIe."""
    found = result["rows"]
    names = [name for name in found[0] if name != "PCIe"]
    cells = [(name, *(number(row[name]) for row in found)) for name in names]
    header = ("", *(f"PCIe by {row['PCIe']}" for row in found))
    return f"{measured_with(result)}\n\n{table(header, cells)}"


def main() -> None:
    """Measure and print."""
    rows = []
    for is_pcie_sampled in (True, False):
        with tempfile.TemporaryDirectory() as directory:
            rows.append(measure(Path(directory), is_pcie_sampled))
    write("scrape", rows, tables={"scrape": table_of})


if __name__ == "__main__":
    main()

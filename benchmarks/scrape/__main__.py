"""What a scrape costs: 8 stub GPUs with PCIe calls that block 20 ms per direction, 8 ranks pushing.

Three phases of one exporter: its responses at 20 scrapes per second, its share of a core at one
scrape every 15 s, and its memory over thousands of scrapes.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Row, measured_with, text_of, write
from benchmarks.scrape.load import GPUS, RANKS, Family, pushing, scrape
from devstack.parts import ExporterProcess
from devstack.process import wait_for
from generators.markdown import table
from tests import nvmlstub


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


def table_of(result: Row) -> str:
    """Return the cost of an exporter, a row for each figure and a column per source of PCIe."""
    found = result["rows"]
    names = [name for name in found[0] if name != "PCIe"]
    cells = [(name, *(text_of(row[name]) for row in found)) for name in names]
    header = ("", *(f"PCIe by {row['PCIe']}" for row in found))
    return f"{measured_with(result)}\n\n{table(header, cells)}"


def main() -> None:
    """Measure and print."""
    rows = []
    for is_pcie_sampled in (True, False):
        with tempfile.TemporaryDirectory() as directory:
            rows.append(measure(Path(directory), Plan(), is_pcie_sampled))
    write("scrape", rows, tables={"scrape": table_of})


if __name__ == "__main__":
    main()

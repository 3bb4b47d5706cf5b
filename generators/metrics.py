"""docs/metrics.md: everything that the exporter exposes, read from its collectors."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.ingest.app import IngestCounts
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import ScrapeRequest
from exporter.scrape.levels import ALL, LEVELS, PARTS, Level, exposed_name
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings
from fleet_simulator.fleet import Fleet
from fleet_simulator.plan import equal_jobs
from generators.markdown import table
from rank_probe.wire.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS, Snapshot

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
GPUS_A_NODE: Final = 8


class EveryReading:
    """Stands in for the NVML worker: one GPU that answers every call."""

    worker_up = True
    worker_restarts = 0
    stuck_call = None
    released = False

    def latest(self) -> NodeSample:
        """Return a sample without missing readings."""
        readings = {field.name: 1 for field in fields(GpuSample)}
        texts = {"uuid": "GPU-1", "name": "GPU", "pci_bus_id": "0"}
        others = {
            "up": True,
            "throttle_seconds": {"idle": 1.0},
            "processes": (),
            "cpu_affinity": (),
            "xid_errors": {},
            "mig_devices": (),
            "nvlink_errors": {},
            "nvlink_link_errors": {},
            "nvlink_link_states": {},
        }
        gpu = GpuSample(**(readings | texts | others))  # type: ignore[arg-type]
        return NodeSample(1.0, 1, "1", "1", (gpu,))


def every_rank_reading() -> RankStore:
    """Return a store with one rank that reports everything."""
    store = RankStore(clock=lambda: 2.0)
    store.put(
        Snapshot(
            job_id="j",
            peer_group="all",
            rank=0,
            world_size=1,
            attempt=0,
            pid=1,
            started_timestamp_seconds=1.0,
            sequence=1,
            heartbeat_timestamp_seconds=2.0,
            steps=1,
            stage_seconds={"data": 1.0},
            busy_seconds=1.0,
            stage="data",
            stage_elapsed_seconds=1.0,
            last_step_timestamp_seconds=1.0,
            rank_info=dict.fromkeys(RANK_INFO_LABELS, ""),
            runtime_info=dict.fromkeys(RUNTIME_INFO_LABELS, ""),
            stage_host_seconds={"data": 1.0},
            samples=1,
            tokens=1,
            padding_tokens=1,
            gc_pause_seconds=1.0,
            cuda_memory_allocated_bytes=1,
            cuda_memory_reserved_bytes=1,
            cuda_alloc_retries=1,
            late_lines=[{"stage": "data", "place": "f (f.py:1)", "share": 1.0}],
        )
    )
    return store


def families_by_collector() -> Iterator[tuple[str, str, list[Metric]]]:
    """Yield each collector's name, its purpose, and everything it can expose."""
    # For a host that has everything: this machine's hardware does not matter.
    host = Settings(path_procfs=str(FIXTURES / "proc"), path_sysfs=str(FIXTURES / "sys"))
    sources = Sources(host, every_rank_reading(), IngestCounts(), EveryReading())
    for entry in COLLECTORS:
        yield entry.name, entry.help, list(entry.make(sources).collect())
    yield "every collector", "Status of each collector.", list(Scrape().collect())


def tables() -> str:
    """Return a table for each collector, below its name, its purpose and the labels of all."""
    parts = []
    for name, purpose, families in families_by_collector():
        shared = [each for each in labels(families[0]) if all(each in labels(f) for f in families)]
        lead = f"{purpose}\nLabels of all: {_quoted(shared)}." if shared else purpose
        rows = [
            (
                f"`{exposed_name(f)}`",
                _level(f),
                _quoted(each for each in labels(f) if each not in shared),
                f.documentation,
            )
            for f in families
        ]
        header = ("metric", "shown", "labels", "meaning")
        parts.append(f"## {name}\n\n{lead}\n\n{table(header, sorted(rows))}")
    return "\n\n".join(parts)


def _level(family: Metric) -> str:
    """Return when *family* is shown."""
    name = exposed_name(family)
    if name not in PARTS:
        return LEVELS.get(name, Level.DETAIL).value
    label, values, level = PARTS[name]
    which = ", ".join(sorted(values))
    return f"{level.value}: `{label}` {which}; else detail"


def series_of_a_node(detail: str) -> int:
    """Return how many series a simulated node of eight GPUs and ranks has, after five minutes."""
    seconds = [1_000.0]
    with TemporaryDirectory() as directory:
        plans = equal_jobs(2, GPUS_A_NODE, 1, [])
        fleet = Fleet(plans, Path(directory), lambda: seconds[0], frozenset({detail}))
        seconds[0] += 300
        node = list(fleet.nodes.values())[-1]
        node.advance(fleet.now())
        asyncio.run(node.exposition.page(ScrapeRequest()))
        page, _ = asyncio.run(node.exposition.page(ScrapeRequest()))
    return sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))


def cost() -> str:
    """Return what 1,000 GPUs cost in series."""
    nodes = 1_000 // GPUS_A_NODE
    core, everything = series_of_a_node(""), series_of_a_node(ALL)
    rows = [
        (what, f"{series:,}", f"{nodes * series:,}")
        for what, series in (("core", core), ("with `--series.detail=all`", everything))
    ]
    return table(("shown", "series of a node", f"of {nodes} nodes"), rows)


def labels(family: Metric) -> tuple[str, ...]:
    """Return the names of the labels of *family*."""
    names = family.samples[0].labels if family.samples else getattr(family, "_labelnames", ())
    return tuple(names)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

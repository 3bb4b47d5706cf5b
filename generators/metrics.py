"""docs/metrics.md: everything that the exporter exposes, read from its collectors."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.ingest.app import IngestCounts
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import ScrapeRequest
from exporter.scrape.levels import ALL, LEVELS, PARTS, Level, exposed_name
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings
from fleet_simulator.fleet import Fleet
from fleet_simulator.plan import equal_jobs
from generators.files import ROOT
from generators.markdown import table

GPUS_A_NODE: Final = 8


class NoReading:
    """Stands in for the NVML worker: what can be exposed does not depend on what was read."""

    worker_up = True
    worker_restarts = 0
    stuck_call = None
    released = False

    def latest(self) -> None:
        """Return no sample."""


def families_by_collector() -> Iterator[tuple[str, str, list[Metric]]]:
    """Yield each collector's name, its purpose, and everything it can expose."""
    # For a host that has everything: this machine's hardware does not matter.
    fixtures = ROOT / "tests" / "fixtures"
    host = Settings(path_procfs=str(fixtures / "proc"), path_sysfs=str(fixtures / "sys"))
    sources = Sources(host, RankStore(), IngestCounts(), NoReading())
    for entry in COLLECTORS:
        yield entry.name, entry.help, list(entry.make(sources).collect())
    yield "every collector", "Status of each collector.", list(Scrape().collect())


def tables() -> str:
    """Return a table for each collector, below its name, its purpose and its common labels."""
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

"""Generates what the documentation lists: metrics, flags, alerts and measured figures.

`python -m docs.build` writes the pages; `--check` exits 1 if a committed one is stale.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

from prometheus_client.metrics_core import Metric

from alerts.build_index import with_tables
from docs import (
    accuracy_table,
    audit_table,
    collectives_table,
    command_table,
    compare_table,
    diagnose_table,
    fault_table,
    figures,
    late_lines_table,
    playbook_table,
    robustness_table,
    scale_table,
)
from docs.markdown import fill, table
from docs.variables import VARIABLES
from exporter.advice import advice
from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.ingest.app import IngestCounts
from exporter.nccl_inspector.watch import InspectorWatch
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings, flags
from rank_probe.snapshot import RANK_INFO_LABELS, RUNTIME_INFO_LABELS, Snapshot

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"


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
            "topology": {},
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
            busy_seconds_squared=1.0,
            stage="data",
            stage_elapsed_seconds=1.0,
            sync_floor_seconds=1.0,
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
            cuda_memory_peak_bytes=1,
            cuda_alloc_retries=1,
            lifecycle_seconds={"init": 1.0},
            late_lines=[{"stage": "data", "place": "f (f.py:1)", "share": 1.0}],
        )
    )
    return store


def families_by_collector() -> Iterator[tuple[str, str, list[Metric]]]:
    """Yield each collector's name, its purpose, and everything it can expose."""
    # For a host that has everything: this machine's hardware does not matter.
    host = Settings(path_procfs=str(FIXTURES / "proc"), path_sysfs=str(FIXTURES / "sys"))
    inspector = InspectorWatch(ROOT, "")  # It never looks.
    sources = Sources(
        host, every_rank_reading(), IngestCounts(), EveryReading(), inspector=inspector
    )
    for entry in COLLECTORS:
        yield entry.name, entry.help, list(entry.make(sources).collect())
    yield "every collector", "Status of each collector.", list(Scrape().collect())


def metrics() -> str:
    """Return docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "This page lists everything the exporter exposes; `make docs` generates it from the code.",
        "These names are public API: a rename is a breaking change.",
        "If there is no reading, the series is absent; it is never zero instead.",
        "Descriptive labels are on the `_info` series; join them with `* on (...) group_left`.",
        "",
        "A rank has at most 48 series, a GPU [64](hardware.md#gpu) and the rest of a node "
        "[120](hardware.md#host); tests check these limits.",
        "Where the exporter sees a rank's process, [up to 16 more](#rank_host) say what that costs "
        "its host.",
        "A late rank has up to 11 more, and a rank whose join does not cover its job up to 10.",
        figures.series(),
    ]
    for name, purpose, families in families_by_collector():
        lines += ["", f"## {name}", "", purpose, ""]
        rows = [(f"`{exposed_name(f)}`", f.type, _labels(f), f.documentation) for f in families]
        lines.append(table(("metric", "type", "labels", "meaning"), sorted(rows)))
    return "\n".join(lines) + "\n"


def flag_rows() -> list[tuple[str, str, str]]:
    """Return a row for every flag of `rankskew exporter`, in the order of its --help."""
    rows = [
        (f"`{flag.name}`", f"`{flag.show(setting.default)}`".replace("``", "empty"), flag.help)
        for setting, flag in flags()
    ]
    return rows + [(f"`--[no-]collector.{entry.name}`", "on", entry.help) for entry in COLLECTORS]


def configuration() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "The flags of `rankskew exporter`; `make docs` generates this page from the code.",
        "",
        table(
            ("flag", "default", "meaning"),
            flag_rows(),
        ),
        "",
        "Environment variables of the training process configure the probe.",
        "",
        table(
            ("variable", "default", "meaning"),
            VARIABLES,
        ),
    ]
    return "\n".join(lines) + "\n"


def exposed_name(family: Metric) -> str:
    """Return the name of *family*'s series on /metrics."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    names = family.samples[0].labels if family.samples else getattr(family, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)


# Every generated page, and the function that makes its new text from the old one.
def _playbook(cause: str, page: str) -> str:
    return fill(page, {"advice": playbook_table.summary(cause)})


PAGES: dict[str, Callable[[str], str]] = {
    "docs/metrics.md": lambda _: metrics(),
    "docs/configuration.md": lambda _: configuration(),
    "docs/concepts.md": lambda page: fill(page, {"masking": figures.masking()}),
    "docs/accuracy.md": lambda page: fill(
        page,
        {
            "faults": accuracy_table.faults(),
            "crosscheck": accuracy_table.crosscheck(),
            "latency": accuracy_table.latency(),
            "ways": accuracy_table.ways(),
            "late_lines": late_lines_table.lines(),
        },
    ),
    "docs/compare.md": lambda page: fill(
        page,
        {
            "sample": compare_table.sample(),
            "coverage": compare_table.coverage(),
            "planted": compare_table.planted(),
        },
    ),
    "docs/overhead.md": lambda page: fill(
        page,
        {
            "overhead": figures.overhead(),
            "join": figures.join(),
            "scrape": figures.scrape(),
            "endurance": figures.endurance(),
            "late_lines_cost": late_lines_table.cost(),
        },
    ),
    "docs/scale.md": lambda page: fill(
        page,
        {
            "scale_outcome": scale_table.outcome(),
            "scale": scale_table.scale(),
            "scale_rules": scale_table.rules(),
            "panels_outcome": scale_table.panels_outcome(),
            "panels": scale_table.panels(),
        },
    ),
    "docs/diagnose.md": lambda page: fill(
        page,
        {
            "sample": diagnose_table.sample(),
            "faults": diagnose_table.faults(),
            "traces": diagnose_table.traces(),
            "planted": diagnose_table.planted(),
        },
    ),
    "docs/audit.md": lambda page: fill(page, {"plants": audit_table.plants()}),
    "docs/playbook/README.md": lambda page: fill(page, {"causes": playbook_table.causes()}),
    **{f"docs/playbook/{cause}.md": partial(_playbook, cause) for cause in advice()},
    "docs/simulate.md": lambda page: fill(page, {"faults": fault_table.faults()}),
    "docs/security.md": lambda page: fill(
        page,
        {
            "hostile": robustness_table.measured("hostile"),
            "slow_clients": robustness_table.slow_clients(),
        },
    ),
    "docs/collectives.md": lambda page: fill(
        page,
        {
            "sample": collectives_table.sample(),
            "links": collectives_table.links(),
            "loop": collectives_table.loop(),
        },
    ),
    "docs/decisions/0002-libraries.md": lambda page: fill(page, figures.library_costs()),
    "docs/operating.md": lambda page: fill(
        page, {"restarts": robustness_table.measured("restarts")}
    ),
    "alerts/README.md": with_tables,
    "README.md": lambda page: fill(
        page,
        {
            "evidence": figures.evidence(),
            "commands": command_table.commands(),
            "costs": figures.costs(),
        },
    ),
}


def stale() -> dict[Path, str]:
    """Return the pages that are out of date, with their new text."""
    found = {}
    for name, generate in PAGES.items():
        path = ROOT / name
        old = path.read_text() if path.exists() else ""
        if (new := generate(old)) != old:
            found[path] = new
    return found


def main() -> int:
    """Write the pages, or with --check print which are stale."""
    parser = argparse.ArgumentParser(description="Generate what the documentation lists.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    check = parser.parse_args().check
    pages = stale()
    if check:
        for path in pages:
            print(f"stale: {path.relative_to(ROOT)}; run `make docs` and commit", file=sys.stderr)
        return 1 if pages else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

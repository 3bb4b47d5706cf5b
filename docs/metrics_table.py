"""docs/metrics.md: everything that the exporter exposes, read from its collectors."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from prometheus_client.metrics_core import Metric

from docs import figures
from docs.markdown import table
from exporter.collectors.catalog import COLLECTORS, Sources
from exporter.ingest.app import IngestCounts
from exporter.nccl_inspector.watch import InspectorWatch
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings
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


def page() -> str:
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


def exposed_name(family: Metric) -> str:
    """Return the name of *family*'s series on /metrics."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    names = family.samples[0].labels if family.samples else getattr(family, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)

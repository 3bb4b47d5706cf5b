"""The list of collectors is complete, and all of them together stay within a node's budget."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter.collectors import catalog
from exporter.collectors.catalog import COLLECTORS, Sources, makers
from exporter.collectors.node.files import Mounts
from exporter.ingest.app import IngestCounts
from exporter.nccl_inspector.watch import InspectorWatch
from exporter.nvml.sample import NvmlSource
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import Scrape
from exporter.settings import Settings
from tests.exporter.collectors.host import HOST, large_host, mounted
from tests.exporter.nvml.fixed import NO_SAMPLE, node
from tests.exporter.snapshots import snapshot

HERE = Path(__file__).parent
ROOMS = ("gpu", "node", "rank")
NO_COLLECTORS = {Path(room, "__init__.py") for room in ("", *ROOMS)} | {
    Path("base.py"),
    Path("catalog.py"),
    Path("gpu/families.py"),
    Path("node/busiest.py"),
    Path("node/files.py"),
}
SERIES_OF_A_NODE = 120


def on(host: Mounts) -> Settings:
    """Return the settings of an exporter on *host*."""
    return Settings(path_procfs=str(host.procfs), path_sysfs=str(host.sysfs))


def page_of(settings: Settings, store: RankStore, nvml: NvmlSource = NO_SAMPLE) -> str:
    """Return what all collectors show together."""
    registry = CollectorRegistry()
    sources = Sources(settings, store, IngestCounts(), nvml)
    registry.register(Scrape(makers=makers(sources)))
    return generate_latest(registry).decode()


def test_every_collector_file_is_listed_and_tested() -> None:
    """One file, one line in the list, one test beside the others; nothing is left over."""
    folder = Path(catalog.__file__).parent
    files = {path.relative_to(folder) for path in folder.rglob("*.py")} - NO_COLLECTORS
    tests = {path.relative_to(HERE) for path in HERE.rglob("test_*.py")}

    assert {file_of(entry.name) for entry in COLLECTORS} == files
    assert {file.with_name(f"test_{file.name}") for file in files} <= tests


def file_of(collector: str) -> Path:
    """Return where a collector is: gpu_xid in gpu/xid.py, late_ranks in rank/late_ranks.py."""
    room, _, stem = collector.partition("_")
    if room in ROOMS:
        return Path(room) / f"{stem}.py"
    return Path(f"{collector}.py") if collector == "exporter_self" else Path(f"rank/{collector}.py")


def test_switch_and_label_of_a_collector_are_the_same() -> None:
    """Who sees a collector fail on the page knows the flag that turns it off."""
    inspector = InspectorWatch(HERE, "host")
    sources = Sources(on(HOST), RankStore(), IngestCounts(), NO_SAMPLE, inspector=inspector)

    assert {name: make().name for name, make in makers(sources).items()} == {
        entry.name: entry.name for entry in COLLECTORS
    }


def test_collector_switched_off_is_not_made() -> None:
    """A collector that is off leaves no trace on the page."""
    page = page_of(Settings(collectors_off=frozenset({"node_cpu"})), RankStore())

    assert "node_cpu" not in page
    assert "rankskew_node_memory_total_bytes" in page


def test_every_metric_is_defined_by_one_collector() -> None:
    """Two families of one name would be an invalid page."""
    store = RankStore()
    store.put(snapshot())
    types = [line for line in page_of(on(HOST), store).splitlines() if line.startswith("# TYPE")]

    assert [line for line, count in Counter(types).items() if count > 1] == []


def test_node_stays_within_its_series_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sockets, eight InfiniBand ports and ten disks, without ranks and GPUs, cost up to 120."""
    host = mounted(large_host(tmp_path), monkeypatch)
    page = page_of(on(host), RankStore(), node())
    series = [line for line in page.splitlines() if not line.startswith("#")]
    of_ports = [line for line in series if line.startswith("rankskew_infiniband_")]

    assert len(of_ports) == 4 * 8 + 1
    assert 'rankskew_collector_success{collector="node_pressure"} 1.0' in page
    assert len([line for line in series if line.startswith("rankskew_node_disk_reads_")]) == 1
    assert len([line for line in series if line.startswith("rankskew_node_cpu_clock_")]) == 1
    assert len(series) <= SERIES_OF_A_NODE


def test_promtool_finds_nothing_to_say_about_the_nodes_metrics() -> None:
    """Names, units and help texts of all that a node without ranks and GPUs shows are sound."""
    said = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page_of(on(HOST), RankStore()),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (said.returncode, said.stdout + said.stderr) == (0, "")

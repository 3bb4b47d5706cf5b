"""The list of collectors is complete, and all of them together stay within a node's budget."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter import collectors
from exporter.collectors import COLLECTORS, Sources, makers
from exporter.ingest_app import no_results
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.ranks import RankStore
from exporter.scrape import Scrape
from exporter.settings import Settings
from tests.exporter.snapshots import snapshot

HERE = Path(__file__).parent
SERIES_OF_A_NODE = 120
DEVICES = 8


class Bytes(NamedTuple):
    """What psutil counts for a network or block device."""

    bytes_sent: int = 1
    bytes_recv: int = 1
    read_bytes: int = 1
    write_bytes: int = 1


def page_of(settings: Settings, store: RankStore) -> str:
    """Return what all collectors show together; the NVML worker does not run."""
    registry = CollectorRegistry()
    sources = Sources(settings, store, no_results(), NvmlSupervisor())
    registry.register(Scrape(makers=makers(sources)))
    return generate_latest(registry).decode()


def test_every_collector_file_is_listed_and_tested() -> None:
    """One file, one line in the list, one test with the same stem; nothing is left over."""
    folder = Path(collectors.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base"}

    assert {entry.name for entry in COLLECTORS} == files
    assert files <= {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")}


def test_switch_and_label_of_a_collector_are_the_same() -> None:
    """Who sees a collector fail on the page knows the flag that turns it off."""
    sources = Sources(Settings(), RankStore(), no_results(), NvmlSupervisor())

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
    types = [line for line in page_of(Settings(), store).splitlines() if line.startswith("# TYPE")]

    assert [line for line, count in Counter(types).items() if count > 1] == []


def test_node_stays_within_its_series_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ranks and GPUs, a node with 8 network and 8 block devices costs at most 120."""
    devices = {f"dev{number}": Bytes() for number in range(DEVICES)}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: devices)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: devices)
    page = page_of(Settings(), RankStore())
    series = [line for line in page.splitlines() if not line.startswith("#")]

    assert sum('device="' in line for line in series) == 4 * DEVICES
    assert len(series) <= SERIES_OF_A_NODE

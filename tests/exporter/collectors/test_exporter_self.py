"""The exporter exposes its version, what it ingested, and its own resource use."""

from pathlib import Path

import pytest

from exporter.collectors.exporter_self import ExporterSelfCollector
from exporter.errors import Failures
from exporter.ingest.app import IngestCounts
from exporter.web.reload import WatchedConfig
from rank_probe.version import __version__
from tests.exporter.collectors.expose import expose, series


def test_version_and_node_are_exposed() -> None:
    """A fleet's releases can be compared by a label, and a target's address has a name."""
    page = expose(ExporterSelfCollector(IngestCounts(), Failures(), node_name="gpu-12"))

    assert 'rankskew_exporter_build_info{nodename="gpu-12",python="3.' in page
    assert f'version="{__version__}"}} 1.0' in page


def test_reload_of_the_web_configuration_is_exposed(tmp_path: Path) -> None:
    """Prometheus's own two series, and neither of them without a file."""
    (tmp_path / "web.yaml").write_text("")
    watched = WatchedConfig(tmp_path / "web.yaml", lambda: 100.0)
    reload = "rankskew_exporter_web_config_last_reload"
    page = expose(ExporterSelfCollector(IngestCounts(), Failures(), web_config=watched))
    assert f"{reload}_successful 1.0" in page
    assert f"{reload}_success_timestamp_seconds 100.0" in page

    (tmp_path / "web.yaml").write_text("[]")
    watched.current()
    page = expose(ExporterSelfCollector(IngestCounts(), Failures(), web_config=watched))
    assert f"{reload}_successful 0.0" in page
    assert f"\n{reload}_" not in expose(ExporterSelfCollector(IngestCounts(), Failures()))


def test_every_result_of_a_push_is_a_series_from_the_start() -> None:
    """A counter that starts at 0 lets rate() see the first refusal."""
    counts = IngestCounts()
    collector = ExporterSelfCollector(counts, Failures())
    assert series(expose(collector))[1 : 1 + len(counts.results)] == [
        f'rankskew_ingest_snapshots_total{{result="{result}"}} 0.0' for result in counts.results
    ]
    assert "rankskew_ingest_unknown_fields_total 0.0" in expose(collector)

    counts.results["oversized"] += 1
    counts.unknown_fields += 2
    assert 'rankskew_ingest_snapshots_total{result="oversized"} 1.0' in expose(collector)
    assert "rankskew_ingest_unknown_fields_total 2.0" in expose(collector)


def test_errors_of_the_exporters_own_work_are_counted_and_each_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What fails every second fills no log, and its traceback is there for a report."""
    failures = Failures()
    collector = ExporterSelfCollector(IngestCounts(), failures)
    assert "rankskew_exporter_errors_total 0.0" in expose(collector)
    for work, reason in (("one", "a"), ("one", "a"), ("two", "a"), ("one", "b")):
        with failures.caught(work):
            raise KeyError(reason)

    assert "rankskew_exporter_errors_total 4.0" in expose(collector)
    assert caplog.messages == [
        "one failed, and goes on: KeyError: 'a'",
        "two failed, and goes on: KeyError: 'a'",
        "one failed, and goes on: KeyError: 'b'",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_cost_of_the_exporter_is_exposed() -> None:
    """The exporter's own CPU time and memory are there to be watched."""
    page = expose(ExporterSelfCollector(IngestCounts(), Failures()))
    names = {line.split()[0] for line in series(page)}

    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= names

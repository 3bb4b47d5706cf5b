"""The list of collectors is complete, within a node's budget, and has the exporter's own."""

from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.samples import Sample

from exporter.collectors.catalog import COLLECTORS, Sources, collectors
from exporter.collectors.exporter_self import ExporterSelfCollector
from exporter.errors import Failures
from exporter.ingest.app import IngestCounts
from exporter.nvml.sample import NvmlSource
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import ScrapedFamilies
from exporter.scrape.levels import exposed_name
from exporter.settings import Settings
from exporter.web.reload import WatchedConfig
from generators.metrics import families_by_collector
from rank_probe.version import __version__
from tests.exporter.collectors.host import HOST, expose, mounted, series, settings_of
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.node import NO_DRIVER, NO_SAMPLE, node
from tests.exporter.running import promtool_check_metrics

SERIES_OF_A_NODE = 121


def page_of(settings: Settings, store: RankStore, nvml: NvmlSource = NO_SAMPLE) -> str:
    """Return what all collectors show together."""
    return expose(*collectors(Sources(settings, store, IngestCounts(), nvml)))


def test_collector_has_a_switch_of_its_name() -> None:
    """Who sees one fail on the page knows the flag that turns it off; then it leaves no trace."""
    sources = Sources(settings_of(HOST), RankStore(), IngestCounts(), NO_SAMPLE)
    page = page_of(Settings(collectors_off=frozenset({"node_cpu"})), RankStore())

    assert [each.name for each in collectors(sources)] == [entry.name for entry in COLLECTORS]
    assert "node_cpu" not in page
    assert "rankskew_node_memory_total_bytes" in page


@pytest.mark.parametrize("nvml", [NO_DRIVER, NO_SAMPLE], ids=["no driver", "no sample"])
def test_what_a_node_does_not_have_is_no_series_and_no_failure(nvml: NvmlSource) -> None:
    """Without GPU, without a fresh sample, without ranks: whatever else runs there."""
    running, counts = {10: process(10, torchrun(0))}, IngestCounts()
    sources = Sources(settings_of(HOST), RankStore(), counts, nvml, processes=lambda: running)
    always = ("gpu_devices", "node_", "exporter")
    made = [each.make(sources) for each in COLLECTORS if not each.name.startswith(always)]
    page = expose(*made)

    assert series(page) == []
    assert "rankskew_collector_success{" not in page


def test_every_metric_is_defined_once_and_promtool_finds_nothing_to_say_about_any() -> None:
    """Names, units and help texts of all that there can be are sound, whatever a node has."""
    families = [family for _, _, found in families_by_collector() for family in found]
    for family in families:
        labels = dict.fromkeys(getattr(family, "_labelnames", ()), "x")
        family.samples = [Sample(exposed_name(family), labels, 1.0)]
    names = [exposed_name(family) for family in families]
    checked = promtool_check_metrics(generate_latest(ScrapedFamilies(families)).decode())

    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_node_stays_within_its_series_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets and any disks, with eight InfiniBand ports, without ranks and GPUs, cost 121."""
    page = page_of(settings_of(mounted(HOST, monkeypatch)), RankStore(), node())
    found = [line for line in page.splitlines() if not line.startswith("#")]
    of_ports = [line for line in found if line.startswith("rankskew_infiniband_")]
    ports = len([line for line in of_ports if "_rate_" in line])

    assert len(of_ports) <= 4 * ports + 1
    assert len([line for line in found if line.startswith("rankskew_node_disk_reads_")]) == 1
    assert len(found) - len(of_ports) + 4 * 8 + 1 <= SERIES_OF_A_NODE


def test_exporter_tells_of_itself(tmp_path: Path) -> None:
    """A fleet's releases can be compared by a label, a target has a name, and its cost is seen.

    A counter that starts at 0 lets rate() see the first refusal. Prometheus's own two series tell
    of the web configuration, and neither of them without a file.
    """
    counts, config = IngestCounts(), tmp_path / "web.yaml"
    config.write_text("")
    web = WatchedConfig(config, lambda: 100.0)
    collector = ExporterSelfCollector(counts, Failures(), node_name="gpu-12", web_config=web)
    page, reload = expose(collector), "rankskew_exporter_web_config_last_reload"
    assert 'rankskew_exporter_build_info{nodename="gpu-12",python="3.' in page
    assert f'version="{__version__}"}} 1.0' in page
    assert "\nprocess_cpu_seconds_total " in page
    for result in counts.results:
        assert f'rankskew_ingest_snapshots_total{{result="{result}"}} 0.0' in page
    assert f"{reload}_successful 1.0" in page
    assert f"{reload}_success_timestamp_seconds 100.0" in page

    counts.unknown_fields += 2
    config.write_text("[]")
    web.current()
    page = expose(collector)
    assert "rankskew_ingest_unknown_fields_total 2.0" in page
    assert f"{reload}_successful 0.0" in page
    assert f"\n{reload}_" not in expose(ExporterSelfCollector(counts, Failures()))


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

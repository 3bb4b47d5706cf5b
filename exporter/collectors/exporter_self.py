"""The exporter itself: its version, what it ingested, and its own resource use."""

import platform
from collections.abc import Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.errors import Failures
from exporter.ingest.app import IngestCounts
from exporter.web.reload import WatchedConfig
from rank_probe.version import __version__


class ExporterSelfCollector:
    """Expose the exporter's build, its ingest and its process_* series.

    *ingest* and *failures* are read at each scrape, and so is *web_config*, the web configuration
    file if there is one.
    """

    name = "exporter_self"
    interval_seconds = 0.0

    def __init__(
        self,
        ingest: IngestCounts,
        failures: Failures,
        node_name: str = "",
        web_config: WatchedConfig | None = None,
    ) -> None:
        self._ingest = ingest
        self._failures = failures
        self._node_name = node_name
        self._web_config = web_config
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "rankskew_exporter_build_info",
            "Versions of this exporter and of its Python, and the name of its node; always 1.",
            labels=["version", "python", "nodename"],
        )
        build.add_metric([__version__, platform.python_version(), self._node_name], 1)
        snapshots = CounterMetricFamily(
            "rankskew_ingest_snapshots_total",
            "Snapshots posted to this exporter, by result.",
            labels=["result"],
        )
        for result, count in self._ingest.results.items():
            snapshots.add_metric([result], count)
        unknown = CounterMetricFamily(
            "rankskew_ingest_unknown_fields_total",
            "Snapshot fields that were ignored because this exporter is older than the probe.",
        )
        unknown.add_metric([], self._ingest.unknown_fields)
        errors = CounterMetricFamily(
            "rankskew_exporter_errors_total",
            "Unexpected errors in the exporter's own background work; each cost one round of that "
            "work. The log has each of them once; please report them.",
        )
        errors.add_metric([], self._failures.count)
        yield from (build, snapshots, unknown, errors)
        yield from self._web_config_families()
        yield from self._process.collect()

    def _web_config_families(self) -> Iterator[Metric]:
        successful = GaugeMetricFamily(
            "rankskew_exporter_web_config_last_reload_successful",
            "Whether the last reading of the web configuration file and its certificates could be "
            "used, 1 or 0; absent without --web.config.file.",
        )
        success = GaugeMetricFamily(
            "rankskew_exporter_web_config_last_reload_success_timestamp_seconds",
            "When the web configuration file was last read and could be used, in Unix time; absent "
            "without --web.config.file.",
        )
        if self._web_config is not None:
            successful.add_metric([], self._web_config.succeeded)
            success.add_metric([], self._web_config.succeeded_at)
        yield from (successful, success)

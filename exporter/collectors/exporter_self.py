"""The exporter itself: its version, what it ingested, and its own resource use."""

import platform
from collections.abc import Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.events.file import EventsFile
from exporter.ingest.app import IngestCounts
from rank_probe.version import __version__


class ExporterSelfCollector:
    """Expose the exporter's build, its ingest and its process_* series.

    *ingest* and *events*, the events file if there is one, are read at each scrape.
    """

    name = "exporter_self"
    interval_seconds = 0.0

    def __init__(self, ingest: IngestCounts, events: EventsFile | None = None) -> None:
        self._ingest = ingest
        self._events = events
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "rankskew_exporter_build_info",
            "Versions of this exporter and of its Python; always 1.",
            labels=["version", "python"],
        )
        build.add_metric([__version__, platform.python_version()], 1)
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
        lines = CounterMetricFamily(
            "rankskew_event_lines_total",
            "Lines for the events file, by result: written, or dropped because the disk was full "
            "or too slow, or the rank had too many; absent without --events.file.",
            labels=["result"],
        )
        if self._events is not None:
            lines.add_metric(["written"], self._events.written)
            lines.add_metric(["dropped"], self._events.dropped)
        yield from (build, snapshots, unknown, lines)
        yield from self._process.collect()

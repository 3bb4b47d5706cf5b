"""The exporter itself: its version, what it took in and what it costs the node."""

import platform
from collections.abc import Iterator, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from rank_probe.version import __version__


class ExporterSelfCollector:
    """Expose the exporter's build, its ingest by result and its process_* series.

    *ingest_results* is read at each scrape: how many snapshots ended with which result.
    """

    name = "exporter_self"
    interval_seconds = 0.0

    def __init__(self, ingest_results: Mapping[str, int]) -> None:
        self._ingest_results = ingest_results
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "rankskew_exporter_build_info",
            "Version of this exporter and of the Python that runs it; always 1.",
            labels=["version", "python"],
        )
        build.add_metric([__version__, platform.python_version()], 1)
        snapshots = CounterMetricFamily(
            "rankskew_ingest_snapshots_total",
            "Snapshots posted to this exporter, by what became of them.",
            labels=["result"],
        )
        for result, count in self._ingest_results.items():
            snapshots.add_metric([result], count)
        yield from (build, snapshots)
        yield from self._process.collect()

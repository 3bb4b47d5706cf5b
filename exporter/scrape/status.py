"""Each collector's status, as metric families."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.base import Collector


class Status:
    """What one scrape tells of its collectors.

    Collectors that only read memory have status series only while they fail: their data has its own
    freshness, and two series for each would use up most of a node's budget. When a collector last
    succeeded matters while it does not.
    """

    def __init__(self) -> None:
        self._success = GaugeMetricFamily(
            "rankskew_collector_success",
            "1 if the collector's latest run succeeded, 0 if it failed and its series are "
            "missing. A collector that only reads memory is listed only while it fails.",
            labels=["collector"],
        )
        self._last_success = GaugeMetricFamily(
            "rankskew_collector_last_success_timestamp_seconds",
            "Time at which the collector last succeeded, in Unix seconds; only while it fails, and "
            "for collectors that run in the background.",
            labels=["collector"],
        )

    def add(
        self,
        collector: Collector,
        succeeded: bool,
        last_success_timestamp_seconds: float | None,
    ) -> None:
        """Add the latest run of *collector*, and when one last succeeded: None if never."""
        labels = [collector.name]
        in_background = collector.interval_seconds > 0
        if in_background or not succeeded:
            self._success.add_metric(labels, float(succeeded))
        if in_background and not succeeded and last_success_timestamp_seconds is not None:
            self._last_success.add_metric(labels, last_success_timestamp_seconds)

    def add_broken(self, name: str) -> None:
        """Add a collector that cannot even be made."""
        self._success.add_metric([name], 0.0)

    def families(self) -> Iterator[Metric]:
        """Yield what was added."""
        yield from (self._success, self._last_success)

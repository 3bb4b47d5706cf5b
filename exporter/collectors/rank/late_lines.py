"""Late lines: the line of code in which each late rank on this node spends its time."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.ranks.store import RankStore


class LateLinesCollector:
    """Expose the first line of each beating rank that reports any; call from the event loop.

    One series a rank, because *place* is not of a closed set. The live page has the other lines.
    """

    name = "late_lines"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        share = GaugeMetricFamily(
            "rankskew_late_line_ratio",
            "Share of the samples of this late rank's stack in the stage that found it in this "
            "line of the user's code; only the most frequent line (probe).",
            labels=[*IDENTITY, "stage", "place"],
        )
        now = self._store.now()
        for rank in self._store.ranks():
            if rank.snapshot.late_lines and rank.is_beating(now):
                first = rank.snapshot.late_lines[0]
                labels = [*identity(rank.snapshot), first["stage"], first["place"]]
                share.add_metric(labels, first["share"])
        yield share

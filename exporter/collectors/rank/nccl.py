"""NCCL: the bus bandwidth of each rank's collectives, as NCCL Inspector measured them."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.base import NotAvailable
from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.nccl_inspector.watch import InspectorWatch, Speeds
from exporter.ranks.store import HeldRank, RankStore

ROOT: Final = 0


class RankNcclCollector:
    """Expose the ranks whose processes NCCL Inspector writes about; call from the event loop.

    Off without a directory. A file speaks for the ranks of the user who owns it only.
    """

    name = "rank_nccl"
    interval_seconds = 0.0

    def __init__(self, store: RankStore, watch: InspectorWatch | None) -> None:
        if watch is None:
            raise NotAvailable("set --collector.rank_nccl.directory to what NCCL Inspector writes")
        self._store = store
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        speed = GaugeMetricFamily(
            "rankskew_nccl_bus_bandwidth_bytes_per_second",
            "Bus bandwidth of this rank's collectives in nccl-tests' convention, mean over the "
            "time in them in the last minute; it includes the wait for ranks that come later, so "
            "the fastest rank shows what the links can do (NCCL Inspector).",
            labels=[*IDENTITY, "collective"],
        )
        by_process = self._watch.latest()
        now = self._store.now()
        for rank in self._store.ranks():
            speeds = by_process.get(rank.snapshot.pid)
            if speeds is not None and rank.is_beating(now) and _is_of(rank, speeds):
                for collective, value in sorted(speeds.bytes_per_second.items()):
                    speed.add_metric([*identity(rank.snapshot), collective], value)
        yield speed


def _is_of(rank: HeldRank, speeds: Speeds) -> bool:
    return rank.owner is None or speeds.uid in (rank.owner.uid, ROOT)

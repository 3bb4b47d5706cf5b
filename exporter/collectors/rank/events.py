"""Events: the last one of each rank, which tells where a rank that stands still has been."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.events import last_event
from exporter.ranks.store import RankStore


class RankEventsCollector:
    """Expose one series per held rank; call from the event loop, where the store lives."""

    name = "rank_events"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        last = GaugeMetricFamily(
            "rankskew_rank_last_event_timestamp_seconds",
            "Time of this rank's last event (init, rendezvous, first_step, checkpoint, evaluation "
            "or end), by state: began or done, in Unix seconds of the node's clock (probe).",
            labels=[*IDENTITY, "event", "state"],
        )
        for held in self._store.ranks():
            event = last_event(held.snapshot)
            if event is not None:
                labels = [*identity(held.snapshot), event.event, event.state]
                last.add_metric(labels, event.timestamp_seconds)
        yield last

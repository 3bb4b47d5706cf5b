"""What ranks process and use: samples, tokens, memory and pauses."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.collectors.table import Row, families
from exporter.ranks.store import RankStore
from rank_probe.wire.snapshot import Snapshot

ROWS: Final[tuple[Row[Snapshot], ...]] = (
    Row(
        "rankskew_samples_total",
        "Samples that this rank has trained on (probe).",
        lambda snapshot: snapshot.samples,
    ),
    Row(
        "rankskew_tokens_total",
        "Tokens that this rank has trained on, padding included (probe).",
        lambda snapshot: snapshot.tokens,
    ),
    Row(
        "rankskew_padding_tokens_total",
        "Padding tokens that this rank has trained on: computed, but useless for training (probe).",
        lambda snapshot: snapshot.padding_tokens,
    ),
    Row(
        "rankskew_gc_pause_seconds_total",
        "Time for which Python's garbage collection paused this rank, in seconds (probe).",
        lambda snapshot: snapshot.gc_pause_seconds,
    ),
    Row(
        "rankskew_cuda_alloc_retries_total",
        "Times that this rank's CUDA allocator had to free its cache and retry (probe, from "
        "torch).",
        lambda snapshot: snapshot.cuda_alloc_retries,
    ),
)


class RankResourcesCollector:
    """Expose every held rank; call from the event loop, where the store lives."""

    name = "rank_resources"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        snapshots = [held.snapshot for held in self._store.ranks()]
        yield from families(ROWS, IDENTITY, [(identity(each), each) for each in snapshots])

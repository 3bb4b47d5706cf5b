"""Late ranks: those on this node that the job's judge names, each with its cost."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.ranks.jobs import own_lateness, verdict_age_seconds
from exporter.ranks.store import HeldRank, RankKey, RankStore
from rank_probe.stages import STAGES
from rank_probe.verdict import UNSYNCED, Late

# Verdicts give the same onset with small differences; a larger one means a new onset.
SAME_ONSET_SECONDS: Final = 2.0


class LateRanksCollector:
    """Expose each beating rank's entry in its own verdict; call from the event loop.

    *clock* is the wall clock, in Unix seconds.
    """

    name = "late_ranks"
    interval_seconds = 0.0

    def __init__(self, store: RankStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._onsets: dict[RankKey, float] = {}

    def collect(self) -> Iterator[Metric]:
        ratio = GaugeMetricFamily(
            "rankskew_late_ratio",
            "Own time of this late rank divided by that of its peers, minus 1; kind is the way "
            "in which it is late, stage the one in which that began (probe, judge of the job).",
            labels=[*IDENTITY, "kind", "stage"],
        )
        gpus = GaugeMetricFamily(
            "rankskew_late_gpus",
            "GPUs that wait for this late rank, by the stage in which it exceeds its peers; "
            "absent if no wait was measured (probe, judge of the job).",
            labels=[*IDENTITY, "stage"],
        )
        since = GaugeMetricFamily(
            "rankskew_late_since_timestamp_seconds",
            "Time at which this late rank became late, in Unix seconds of the node's clock "
            "(probe, judge of the job).",
            labels=IDENTITY,
        )
        now = self._store.now()
        onsets: dict[RankKey, float] = {}
        for rank in self._store.ranks():
            late = own_lateness(rank.snapshot) if rank.is_beating(now) else None
            if late is None:
                continue
            who = identity(rank.snapshot)
            ratio.add_metric([*who, late.kind, late.stage], late.ratio)
            for stage in STAGES:
                if stage in late.gpus and late.kind != UNSYNCED:
                    gpus.add_metric([*who, stage], late.gpus[stage])
            key = (rank.snapshot.job_id, rank.snapshot.rank)
            onsets[key] = self._onset(key, rank, late, now)
            since.add_metric(who, onsets[key])
        self._onsets = onsets
        yield from (ratio, gpus, since)

    def _onset(self, key: RankKey, rank: HeldRank, late: Late, now: float) -> float:
        """Return when *rank* became late: the first onset reported, until a new one replaces it."""
        onset = self._clock() - late.since_seconds - verdict_age_seconds(rank, now)
        told = self._onsets.get(key, onset)
        return told if abs(told - onset) <= SAME_ONSET_SECONDS else onset

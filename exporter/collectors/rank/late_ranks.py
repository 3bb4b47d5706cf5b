"""Late ranks: those that their job's judge names, each with its cost and its line of code."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.live.sentences import pausing
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankKey, RankStore
from rank_probe.judge.verdict import UNSYNCED
from rank_probe.wire.stages import STAGES

# Verdicts give the same onset with small differences; a larger one means a new onset.
SAME_ONSET_SECONDS: Final = 2.0


class LateRanksCollector:
    """Expose what the verdict says of each rank that beats here; call from the event loop.

    *node_name* is what people call this node. *clock* is the wall clock, in Unix seconds.
    """

    name = "late_ranks"
    interval_seconds = 0.0

    def __init__(
        self, jobs: NodeJobs, node_name: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._jobs = jobs
        self._node_name = node_name
        self._clock = clock
        self._onsets: dict[RankKey, float] = {}

    def collect(self) -> Iterator[Metric]:
        ratio = GaugeMetricFamily(
            "rankskew_late_ratio",
            "Own time of this late rank divided by that of its peers, minus 1; kind is the way "
            "in which it is late, stage the one in which that began (probe, judge of the job).",
            labels=[*IDENTITY, "kind", "stage", "nodename"],
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
        pause = GaugeMetricFamily(
            "rankskew_late_pause_seconds",
            "Length of a pause of this rank for which the others wait now and then, the median; "
            "sentence says what it does (probe, judge of the job).",
            labels=[*IDENTITY, "sentence"],
        )
        every = GaugeMetricFamily(
            "rankskew_late_pause_steps",
            "Steps from one pause of this rank to the next, the median (probe, judge of the job).",
            labels=IDENTITY,
        )
        onsets: dict[RankKey, float] = {}
        for job in self._jobs.now():
            for rank, late in job.late():
                who = identity(rank.snapshot)
                ratio.add_metric([*who, late.kind, late.stage, self._node_name], late.ratio)
                for stage in STAGES:
                    if stage in late.gpus and late.kind != UNSYNCED:
                        gpus.add_metric([*who, stage], late.gpus[stage])
                key = (job.job_id, late.rank)
                onsets[key] = self._onset(key, self._clock() - late.since_seconds)
                since.add_metric(who, onsets[key])
                if late.every_steps:
                    how = late.kind, late.stage, late.every_steps, late.pause_seconds
                    pause.add_metric([*who, pausing(*how)], late.pause_seconds)
                    every.add_metric(who, late.every_steps)
        self._onsets = onsets
        yield from (ratio, gpus, since, pause, every)

    def _onset(self, key: RankKey, onset: float) -> float:
        """Return when the rank became late: the first *onset* reported, until a new one differs."""
        told = self._onsets.get(key, onset)
        return told if abs(told - onset) <= SAME_ONSET_SECONDS else onset


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
            "Share of the samples of a late or stuck rank's stack in the stage that found it in "
            "this line of the user's code; only the most frequent line (probe).",
            labels=[*IDENTITY, "stage", "place"],
        )
        now = self._store.now()
        for rank in self._store.ranks():
            first = next(iter(rank.snapshot.late_lines), None)
            if first and first["stage"] != "sync" and rank.is_beating(now):  # That one waits.
                labels = [*identity(rank.snapshot), first["stage"], first["place"]]
                share.add_metric(labels, first["share"])
        yield share

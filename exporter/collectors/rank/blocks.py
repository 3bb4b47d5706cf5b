"""Rank blocks: the mean step of each rank's last whole block, for jobs without a verdict."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import RankStore
from rank_probe.snapshot import LEVEL_OFF, Snapshot
from rank_probe.stages import STAGES

SYNC = "sync"


class RankBlocksCollector:
    """Expose the blocks of beating ranks without a verdict; call from the event loop."""

    name = "rank_blocks"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        busy = GaugeMetricFamily(
            "rankskew_block_busy_seconds",
            "Mean time per step in which this rank did not wait for others, in seconds, over its "
            "last whole block of steps; only while no judge covers its job (probe).",
            labels=IDENTITY,
        )
        step = GaugeMetricFamily(
            "rankskew_block_step_seconds",
            "Mean step time, in seconds, over this rank's last whole block of steps; absent if "
            "no wait was measured; only while no judge covers its job (probe).",
            labels=IDENTITY,
        )
        stages = GaugeMetricFamily(
            "rankskew_block_stage_seconds",
            "Mean time per step and stage (without sync), in seconds, over this rank's last "
            "whole block of steps; only while no judge covers its job (probe).",
            labels=[*IDENTITY, "stage"],
        )
        for snapshot in self._unjudged():
            who, block = identity(snapshot), snapshot.block_seconds
            own = [stage for stage in STAGES if stage in block and stage != SYNC]
            busy.add_metric(who, sum(block[stage] for stage in own))
            if SYNC in block:
                step.add_metric(who, sum(block.values()))
            for stage in own:
                stages.add_metric([*who, stage], block[stage])
        yield from (busy, step, stages)

    def _unjudged(self) -> Iterator[Snapshot]:
        for job in node_jobs(self._store.ranks(), self._store.now()):
            if not job.is_judged():
                beating = (rank.snapshot for rank in job.beating)
                yield from (each for each in beating if _has_block(each))


def _has_block(snapshot: Snapshot) -> bool:
    # A rank whose probe is off has no new blocks, so its last one would stay forever.
    return snapshot.block_steps > 0 and bool(snapshot.block_seconds) and snapshot.level != LEVEL_OFF

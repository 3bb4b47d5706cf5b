"""Ranks: the state that each training process on this node last reported."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import HeldRank, RankStore
from rank_probe.snapshot import LEVEL_OFF, RANK_INFO_LABELS, RUNTIME_INFO_LABELS, Snapshot
from rank_probe.stages import PHASE_OF, STAGES

IDENTITY = ["job_id", "peer_group", "rank"]

# Shorter stays are part of a normal step: nearly every scrape would create another stage's series.
LONG_SECONDS: Final = 10.0
# But while no rank of a job here finishes a step, the culprit may hop between stages.
STANDING_SECONDS: Final = 30.0


class RanksCollector:
    """Expose every held rank; call from the event loop, where the store lives."""

    name = "ranks"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        held, now = self._store.ranks(), self._store.now()
        snapshots = [rank.snapshot for rank in held]
        yield from _steps(snapshots)
        yield from _times(snapshots)
        yield from _joined(snapshots)
        yield from _now(snapshots, _standing(held, now))
        yield _silent(held, now)
        yield _starting(held, now)
        yield from _process(snapshots)
        yield from _info(snapshots)


def identity(snapshot: Snapshot) -> list[str]:
    """Return the values of IDENTITY, the labels of every series of a rank."""
    return [snapshot.job_id, snapshot.peer_group, str(snapshot.rank)]


def _steps(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    total = CounterMetricFamily(
        "rankskew_steps_total",
        "Whole training steps that this rank has finished since its process started (probe).",
        labels=IDENTITY,
    )
    finished_at = GaugeMetricFamily(
        "rankskew_last_step_timestamp_seconds",
        "Time at which this rank finished its last step, in Unix seconds of the node's clock; "
        "absent while its probe is off (probe).",
        labels=IDENTITY,
    )
    for snapshot in snapshots:
        total.add_metric(identity(snapshot), snapshot.steps)
        # A rank whose probe is off does not count steps: an old time would look like a hang.
        if snapshot.last_step_timestamp_seconds is not None and snapshot.level != LEVEL_OFF:
            finished_at.add_metric(identity(snapshot), snapshot.last_step_timestamp_seconds)
    yield from (total, finished_at)


def _times(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    stages = CounterMetricFamily(
        "rankskew_stage_seconds_total",
        "Time of whole steps that this rank spent in each stage, in seconds; the stages add up "
        "to the wall time (probe).",
        labels=[*IDENTITY, "phase", "stage"],
    )
    busy = CounterMetricFamily(
        "rankskew_busy_seconds_total",
        "Time of whole steps in which this rank did not wait for others, in seconds: step minus "
        "sync (probe).",
        labels=IDENTITY,
    )
    squared = CounterMetricFamily(
        "rankskew_busy_seconds_squared_total",
        "Sum over whole steps of the squared busy time, in seconds squared; it shows "
        "step-to-step noise (probe).",
        labels=IDENTITY,
    )
    floor = GaugeMetricFamily(
        "rankskew_sync_floor_seconds",
        "2 % quantile of this rank's exposed waits over the last minute, in seconds: the cost of "
        "communication alone (probe).",
        labels=IDENTITY,
    )
    for snapshot in snapshots:
        who = identity(snapshot)
        for stage in STAGES:
            if stage in snapshot.stage_seconds:
                labels = [*who, PHASE_OF[stage], stage]
                stages.add_metric(labels, snapshot.stage_seconds[stage])
        busy.add_metric(who, snapshot.busy_seconds)
        squared.add_metric(who, snapshot.busy_seconds_squared)
        if snapshot.sync_floor_seconds is not None:
            floor.add_metric(who, snapshot.sync_floor_seconds)
    yield from (stages, busy, squared, floor)


def _joined(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    paced = CounterMetricFamily(
        "rankskew_paced_steps_total",
        "Joined steps in which this rank was the slowest, so that the others waited for it "
        "(probe, per-step join).",
        labels=IDENTITY,
    )
    caused = CounterMetricFamily(
        "rankskew_wait_caused_seconds_total",
        "GPU-seconds of joined steps that the other ranks waited because of this rank, by the "
        "stage in which it exceeded its peers (probe, per-step join).",
        labels=[*IDENTITY, "stage"],
    )
    group_wait = CounterMetricFamily(
        "rankskew_group_wait_seconds_total",
        "Time of joined steps that this rank waited because its peer group has less work than "
        "the heaviest one, in seconds; only in jobs with several peer groups (probe, per-step "
        "join).",
        labels=IDENTITY,
    )
    joined = CounterMetricFamily(
        "rankskew_joined_seconds_total",
        "Wall time of this rank's joined steps, in seconds; divide the other counters of the "
        "join by it (probe, per-step join).",
        labels=IDENTITY,
    )
    coverage = GaugeMetricFamily(
        "rankskew_join_coverage_ratio",
        "Share of the steps that this rank offered to the per-step join in the last minute and "
        "that were joined with all ranks; absent if no join has begun (probe).",
        labels=IDENTITY,
    )
    for snapshot in snapshots:
        who = identity(snapshot)
        for stage in STAGES:
            if stage in snapshot.wait_caused_seconds:
                caused.add_metric([*who, stage], snapshot.wait_caused_seconds[stage])
        if snapshot.paced_steps:
            paced.add_metric(who, sum(snapshot.paced_steps.values()))
        for family, value in (
            (group_wait, snapshot.group_wait_seconds),
            (joined, snapshot.joined_seconds),
            (coverage, snapshot.join_coverage),
        ):
            if value is not None:
                family.add_metric(who, value)
    yield from (paced, caused, group_wait, joined, coverage)


def _standing(held: Sequence[HeldRank], now: float) -> frozenset[str]:
    """Return the jobs of which no rank here has finished a step for a while."""
    return frozenset(
        job.job_id
        for job in node_jobs(held, now)
        if (job.last_step_age_seconds or 0.0) >= STANDING_SECONDS
    )


def _now(snapshots: Sequence[Snapshot], standing: frozenset[str]) -> Iterator[Metric]:
    heartbeat = GaugeMetricFamily(
        "rankskew_heartbeat_timestamp_seconds",
        "Time of the last report of this rank's probe, in Unix seconds of the node's clock; "
        "absent once the rank has ended cleanly (probe).",
        labels=IDENTITY,
    )
    elapsed = GaugeMetricFamily(
        "rankskew_stage_elapsed_seconds",
        "How long this rank has been in its current stage, in seconds at the last heartbeat; "
        "absent before 10 s (unless no rank of its job here has finished a step for 30 s), while "
        "its probe is off, and once it has ended cleanly (probe).",
        labels=[*IDENTITY, "stage"],
    )
    finished = GaugeMetricFamily(
        "rankskew_rank_finished",
        "1 once this rank has ended cleanly; absent until then (probe).",
        labels=IDENTITY,
    )
    for snapshot in snapshots:
        who = identity(snapshot)
        if snapshot.finished:
            finished.add_metric(who, 1.0)
        else:
            heartbeat.add_metric(who, snapshot.heartbeat_timestamp_seconds)
        is_told = snapshot.stage_elapsed_seconds >= LONG_SECONDS or snapshot.job_id in standing
        if is_told and not snapshot.finished and snapshot.level != LEVEL_OFF:
            elapsed.add_metric([*who, snapshot.stage], snapshot.stage_elapsed_seconds)
    yield from (heartbeat, elapsed, finished)


def _silent(held: Sequence[HeldRank], now: float) -> Metric:
    silent = GaugeMetricFamily(
        "rankskew_rank_silent_seconds",
        "Time since this rank's last report, in seconds by the exporter's clock; absent while it "
        "reports (at least every 10 s), and once it has ended cleanly (exporter).",
        labels=IDENTITY,
    )
    for rank in held:
        if rank.is_silent(now):
            silent.add_metric(identity(rank.snapshot), now - rank.received_seconds)
    return silent


def _starting(held: Sequence[HeldRank], now: float) -> Metric:
    starting = GaugeMetricFamily(
        "rankskew_rank_starting_seconds",
        "Time since this rank's process began, in seconds, while it has not finished a first "
        "step; absent afterwards, while its probe is off, and once it has ended cleanly (probe).",
        labels=IDENTITY,
    )
    for rank in held:
        snapshot = rank.snapshot
        if snapshot.steps == 0 and not snapshot.finished and snapshot.level != LEVEL_OFF:
            starting.add_metric(identity(snapshot), now - rank.began_seconds)
    return starting


def _process(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    errors = CounterMetricFamily(
        "rankskew_probe_errors_total",
        "Failures inside the probe that did not affect training (probe).",
        labels=IDENTITY,
    )
    dropped = CounterMetricFamily(
        "rankskew_probe_dropped_steps_total",
        "Whole steps whose GPU times were discarded, for example because the GPU was too far "
        "behind (probe).",
        labels=IDENTITY,
    )
    failures = CounterMetricFamily(
        "rankskew_probe_push_failures_total",
        "Snapshots that the probe could not deliver; the next snapshot contains the same data "
        "(probe).",
        labels=IDENTITY,
    )
    for snapshot in snapshots:
        who = identity(snapshot)
        errors.add_metric(who, snapshot.probe_errors)
        dropped.add_metric(who, snapshot.dropped_steps)
        failures.add_metric(who, snapshot.push_failures)
    yield from (errors, dropped, failures)


def _info(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    rank = GaugeMetricFamily(
        "rankskew_rank_info",
        "Where this rank runs and how it is timed, as labels to join; always 1. pid is its process "
        "ID, in a container the one there (probe).",
        labels=[*IDENTITY, "pid", *RANK_INFO_LABELS],
    )
    runtime = GaugeMetricFamily(
        "rankskew_runtime_info",
        "Software versions of this rank, as labels to join; always 1 (probe).",
        labels=[*IDENTITY, *RUNTIME_INFO_LABELS],
    )
    for snapshot in snapshots:
        who = identity(snapshot)
        # The typed fields win over equally named text in the info.
        about = snapshot.rank_info | {
            "world_size": str(snapshot.world_size),
            "attempt": str(snapshot.attempt),
            "level": snapshot.level,
        }
        where = (about.get(label, "") for label in RANK_INFO_LABELS)
        rank.add_metric([*who, str(snapshot.pid), *where], 1)
        versions = (snapshot.runtime_info.get(label, "") for label in RUNTIME_INFO_LABELS)
        runtime.add_metric([*who, *versions], 1)
    yield from (rank, runtime)

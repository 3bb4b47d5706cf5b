"""Ranks: the state, work and last event that each training process on this node has reported."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.table import Row, families, in_order
from exporter.events import last_event
from exporter.processes.rank_gpus import RankOnGpu
from exporter.ranks.jobs import node_jobs
from exporter.ranks.store import HeldRank, RankStore
from rank_probe.wire.snapshot import LEVEL_OFF, RANK_INFO_LABELS, RUNTIME_INFO_LABELS, Snapshot
from rank_probe.wire.stages import PHASE_OF, STAGES

IDENTITY = ["job_id", "peer_group", "rank"]

# Shorter stays are part of a normal step: nearly every scrape would create another stage's series.
LONG_SECONDS: Final = 10.0
# But while no rank of a job here finishes a step, the culprit may hop between stages.
STANDING_SECONDS: Final = 30.0
RESOURCES: Final[tuple[Row[Snapshot], ...]] = (
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


class ReportedRank(NamedTuple):
    """A rank, with what it last reported, at *now*; its job may stand still, see _standing."""

    snapshot: Snapshot
    held: HeldRank
    now: float
    stands: bool


class RanksCollector:
    """Expose every held rank; call from the event loop, where the store lives."""

    name = "ranks"
    interval_seconds = 0.0

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        held, now = self._store.ranks(), self._store.now()
        standing = _standing(held, now)
        seen = [
            ReportedRank(each.snapshot, each, now, each.snapshot.job_id in standing)
            for each in held
        ]
        yield from families(ROWS, IDENTITY, [(identity(each.snapshot), each) for each in seen])


def identity(rank: Snapshot | RankOnGpu) -> tuple[str, str, str]:
    """Return the values of IDENTITY, the labels of every series of a rank."""
    return rank.job_id, rank.peer_group, str(rank.rank)


def _standing(held: Sequence[HeldRank], now: float) -> frozenset[str]:
    """Return the jobs of which no rank here has finished a step for a while."""
    return frozenset(
        job.job_id
        for job in node_jobs(held, now)
        if (job.last_step_age_seconds or 0.0) >= STANDING_SECONDS
    )


def _last_step_seconds(rank: ReportedRank) -> float | None:
    # A rank whose probe is off does not count steps: an old time would look like a hang.
    is_off = rank.snapshot.level == LEVEL_OFF
    return None if is_off else rank.snapshot.last_step_timestamp_seconds


def _stage_seconds(rank: ReportedRank) -> dict[tuple[str, ...], float]:
    by_stage = in_order(rank.snapshot.stage_seconds, STAGES)
    return {(PHASE_OF[stage], stage): seconds for stage, seconds in by_stage.items()}


def _elapsed_seconds(rank: ReportedRank) -> dict[str, float]:
    snapshot = rank.snapshot
    is_told = snapshot.stage_elapsed_seconds >= LONG_SECONDS or rank.stands
    if not is_told or snapshot.finished or snapshot.level == LEVEL_OFF:
        return {}
    return {snapshot.stage: snapshot.stage_elapsed_seconds}


def _starting_seconds(rank: ReportedRank) -> float | None:
    snapshot = rank.snapshot
    is_starting = snapshot.steps == 0 and not snapshot.finished and snapshot.level != LEVEL_OFF
    return rank.now - rank.held.began_seconds if is_starting else None


def _info(rank: ReportedRank) -> dict[tuple[str, ...], float]:
    snapshot = rank.snapshot
    # The typed fields win over equally named text in the info.
    about = snapshot.rank_info | {
        "world_size": str(snapshot.world_size),
        "attempt": str(snapshot.attempt),
        "level": snapshot.level,
    }
    return {(str(snapshot.pid), *(about.get(label, "") for label in RANK_INFO_LABELS)): 1.0}


def _runtime(rank: ReportedRank) -> dict[tuple[str, ...], float]:
    versions = (rank.snapshot.runtime_info.get(label, "") for label in RUNTIME_INFO_LABELS)
    return {tuple(versions): 1.0}


ROWS: Final[tuple[Row[ReportedRank], ...]] = (
    Row(
        "rankskew_steps_total",
        "Whole training steps that this rank has finished since its process started (probe).",
        lambda rank: rank.snapshot.steps,
    ),
    Row(
        "rankskew_last_step_timestamp_seconds",
        "Time at which this rank finished its last step, in Unix seconds of the node's clock; "
        "absent while its probe is off (probe).",
        _last_step_seconds,
    ),
    Row(
        "rankskew_stage_seconds_total",
        "Time of whole steps that this rank spent in each stage, in seconds; the stages add up "
        "to the wall time (probe).",
        _stage_seconds,
        ("phase", "stage"),
    ),
    Row(
        "rankskew_busy_seconds_total",
        "Time of whole steps in which this rank did not wait for others, in seconds: step minus "
        "sync (probe).",
        lambda rank: rank.snapshot.busy_seconds,
    ),
    Row(
        "rankskew_wait_caused_seconds_total",
        "GPU-seconds of joined steps that the other ranks waited because of this rank, by the "
        "stage in which it exceeded its peers (probe, per-step join).",
        lambda rank: in_order(rank.snapshot.wait_caused_seconds, STAGES),
        ("stage",),
    ),
    Row(
        "rankskew_group_wait_seconds_total",
        "Time of joined steps that this rank waited because its peer group has less work than "
        "the heaviest one, in seconds; only in jobs with several peer groups (probe, per-step "
        "join).",
        lambda rank: rank.snapshot.group_wait_seconds,
    ),
    Row(
        "rankskew_joined_seconds_total",
        "Wall time of this rank's joined steps, in seconds; divide the other counters of the "
        "join by it (probe, per-step join).",
        lambda rank: rank.snapshot.joined_seconds,
    ),
    Row(
        "rankskew_join_coverage_ratio",
        "Share of the steps that this rank offered to the per-step join in the last minute and "
        "that were joined with all ranks; absent if no join has begun (probe).",
        lambda rank: rank.snapshot.join_coverage,
    ),
    Row(
        "rankskew_heartbeat_timestamp_seconds",
        "Time of the last report of this rank's probe, in Unix seconds of the node's clock; "
        "absent once the rank has ended cleanly (probe).",
        lambda rank: None if rank.snapshot.finished else rank.snapshot.heartbeat_timestamp_seconds,
    ),
    Row(
        "rankskew_stage_elapsed_seconds",
        "How long this rank has been in its current stage, in seconds at the last heartbeat; "
        "absent before 10 s (unless no rank of its job here has finished a step for 30 s), while "
        "its probe is off, and once it has ended cleanly (probe).",
        _elapsed_seconds,
        ("stage",),
    ),
    Row(
        "rankskew_rank_finished",
        "1 once this rank has ended cleanly; absent until then (probe).",
        lambda rank: 1.0 if rank.snapshot.finished else None,
    ),
    Row(
        "rankskew_rank_silent_seconds",
        "Time since this rank's last report, in seconds by the exporter's clock; absent while it "
        "reports (at least every 10 s), and once it has ended cleanly (exporter).",
        lambda rank: (
            rank.now - rank.held.received_seconds if rank.held.is_silent(rank.now) else None
        ),
    ),
    Row(
        "rankskew_rank_starting_seconds",
        "Time since this rank's process began, in seconds, while it has not finished a first "
        "step; absent afterwards, while its probe is off, and once it has ended cleanly (probe).",
        _starting_seconds,
    ),
    Row(
        "rankskew_probe_errors_total",
        "Failures inside the probe that did not affect training (probe).",
        lambda rank: rank.snapshot.probe_errors,
    ),
    Row(
        "rankskew_probe_dropped_steps_total",
        "Whole steps whose GPU times were discarded, for example because the GPU was too far "
        "behind (probe).",
        lambda rank: rank.snapshot.dropped_steps,
    ),
    Row(
        "rankskew_probe_push_failures_total",
        "Snapshots that the probe could not deliver; the next snapshot contains the same data "
        "(probe).",
        lambda rank: rank.snapshot.push_failures,
    ),
    Row(
        "rankskew_rank_info",
        "Where this rank runs and how it is timed, as labels to join; always 1. pid is its process "
        "ID, in a container the one there (probe).",
        _info,
        ("pid", *RANK_INFO_LABELS),
    ),
    Row(
        "rankskew_runtime_info",
        "Software versions of this rank, as labels to join; always 1 (probe).",
        _runtime,
        tuple(RUNTIME_INFO_LABELS),
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
        yield from families(RESOURCES, IDENTITY, [(identity(each), each) for each in snapshots])


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

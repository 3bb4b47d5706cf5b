"""Figures of a rank: its steps, from its snapshots; its processes, from the host's counters."""

from collections.abc import Iterator

from exporter.causes.excess import STEP, stage_figure
from exporter.causes.row import OWN_STAGES
from exporter.evidence.growth import Growth
from exporter.evidence.ring import Increment
from exporter.processes.host_watch import HostCost
from exporter.processes.rank_cost import NANOSECONDS, TICKS_PER_SECOND
from exporter.ranks.store import HeldRank
from rank_probe.wire.snapshot import Snapshot


class RankReadings:
    """Reads one process of a rank again and again."""

    def __init__(self) -> None:
        self._grown = Growth()

    def read_steps(self, held: HeldRank) -> Iterator[Increment]:
        """Yield what its newest snapshot says."""
        snapshot = held.snapshot
        since = self._grown.of("received", held.received_seconds)
        paused = self._grown.of("gc", snapshot.gc_pause_seconds)
        if since and paused is not None:
            yield Increment("gc_ratio", paused, since)
        steps = self._grown.of("steps", snapshot.steps)
        for figure, total in _of_steps(snapshot):
            # A stage that occurs for the first time began at zero.
            grown = self._grown.of(figure, total or 0.0)
            if steps and total is not None and grown is not None:
                yield Increment(figure, grown, steps)

    def read_host(
        self, cost: HostCost, seconds: float, near_gpu: float | None = None
    ) -> Iterator[Increment]:
        """Yield what its processes used, as looked up at the time *seconds*.

        *near_gpu* is the share of its CPUs that are near its GPU.
        """
        since = self._grown.of("looked", seconds)
        for figure, amount, weight in self._costs(cost, since):
            if amount is not None and weight:
                yield Increment(figure, amount, weight)
        levels = {
            "saturated_workers": cost.used.saturated_workers,
            "cpus_near_gpu_ratio": near_gpu,
        }
        for figure, level in levels.items():
            if since and level is not None:
                yield Increment(figure, level * since, since)

    def _costs(
        self, cost: HostCost, since: float | None
    ) -> Iterator[tuple[str, float | None, float | None]]:
        used, grown = cost.used, self._grown.of
        yield "main_running_ratio", _seconds(grown("running", used.running_nanoseconds)), since
        yield "main_run_queue_ratio", _seconds(grown("queue", used.run_queue_nanoseconds)), since
        waited = _seconds(grown("workers queue", used.workers_run_queue_nanoseconds))
        worked = grown("workers cpu", used.workers_cpu_ticks)
        if waited is not None and worked is not None:
            # Of the time that they wanted a CPU.
            yield "workers_run_queue_ratio", waited, waited + worked / TICKS_PER_SECOND
        yield "read_bytes_per_second", grown("read", used.read_bytes), since
        yield "major_faults_per_second", grown("faults", used.major_faults), since
        yield "io_waiting_ratio", grown("io", cost.cgroup.pressure_seconds.get("io")), since
        quota = cost.cgroup.throttling
        if quota is not None:
            throttled = grown("throttled", quota.throttled_periods)
            yield "cpu_quota_throttled_ratio", throttled, grown("periods", quota.periods)


def _of_steps(snapshot: Snapshot) -> Iterator[tuple[str, float | None]]:
    """Yield what counts up with the steps; None for what the rank does not have."""
    yield "tokens_per_step", snapshot.tokens
    yield "samples_per_step", snapshot.samples
    yield STEP, sum(snapshot.stage_seconds.values()) if snapshot.stage_seconds else None
    for stage in OWN_STAGES:
        # 0 without the stage, or quantiles would cover only the few peers that have it.
        seconds = snapshot.stage_seconds.get(stage, 0.0) if snapshot.stage_seconds else None
        yield stage_figure(stage), seconds


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS

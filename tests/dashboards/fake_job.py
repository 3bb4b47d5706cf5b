"""A simulated job of eight ranks on two nodes whose rank 5 is late in data; served for a look.

Rank series go through the real snapshot and collector. The judge and the GPU series are stubs. To
look at a dashboard, run `python -m tests.dashboards.fake_job 9101 9102` and let a Prometheus scrape
both ports (one a node).
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.blocks import RankBlocksCollector
from exporter.collectors.rank.jobs import JobsCollector
from exporter.collectors.rank.late_ranks import LateRanksCollector
from exporter.collectors.rank.ranks import RanksCollector
from exporter.ranks.store import RankStore
from rank_probe.snapshot import Snapshot
from tests.dashboards.fake_judge import FakeJudge, Lateness

JOB_ID: Final = "demo"
NODES: Final = 2
RANKS_A_NODE: Final = 4
LATE_RANK: Final = 5
COMMUNICATION_SECONDS: Final = 0.02
# The power of two at which blocks end: the first that takes thirty seconds.
BLOCK_STEPS: Final = 128
STAGES: Final = {
    "optimizer": 0.012,
    "other": 0.004,
    "data": 0.02,
    "h2d": 0.008,
    "forward": 0.09,
    "backward": 0.18,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and how many seconds after the start; None is never.

    Without *join* the ranks do not compare their steps. A *frozen* rank hangs without a sign of
    life.
    """

    late_after: float | None = None
    late_seconds: float = 0.15
    hung_after: float | None = None
    frozen: bool = False
    gpus: bool = True
    join: bool = True


@dataclass(slots=True)
class _Counters:
    steps: int = 0
    stage_seconds: Counter[str] = field(default_factory=Counter)
    busy_seconds: float = 0.0
    busy_seconds_squared: float = 0.0
    block_began: Counter[str] = field(default_factory=Counter)
    block_seconds: dict[str, float] = field(default_factory=dict)

    def commit(self, stages: dict[str, float], busy: float) -> None:
        self.steps += 1
        self.stage_seconds.update(stages)
        self.busy_seconds += busy
        self.busy_seconds_squared += busy**2
        if self.steps % BLOCK_STEPS == 0:
            block = self.stage_seconds - self.block_began
            self.block_seconds = {stage: block[stage] / BLOCK_STEPS for stage in block}
            self.block_began = Counter(self.stage_seconds)


class FakeJob:
    """The job, stepped up to any later time; not thread-safe."""

    def __init__(self, start: float, fault: Fault) -> None:
        self.now = self.start = self._last_step = start
        self._fault = fault
        self._random = random.Random(7)
        self._ranks = [_Counters() for _ in range(NODES * RANKS_A_NODE)]
        self._judge = FakeJudge(len(self._ranks), self._lateness())
        self._stores = [RankStore(clock=lambda: self.now) for _ in range(NODES)]
        self._registries = [self._registry(node) for node in range(NODES)]

    def advance(self, now: float) -> None:
        """Let the job run until *now* (Unix seconds)."""
        self.now = now
        while self._last_step + 0.6 <= now and not self._hangs():
            self._step()
        for rank in range(len(self._ranks)):
            if not (self._hangs() and self._fault.frozen and rank == LATE_RANK):
                self._stores[rank // RANKS_A_NODE].put(self._snapshot(rank))

    def exposition(self, node: int) -> str:
        """Return what the exporter of *node* would answer now."""
        return generate_latest(self._registries[node]).decode()

    def is_late(self) -> bool:
        """Return whether a rank is late now."""
        return self._has(self._fault.late_after)

    def _lateness(self) -> Lateness | None:
        if self._fault.late_after is None:
            return None
        ratio = self._fault.late_seconds / sum(STAGES.values())
        return Lateness(LATE_RANK, "data", self.start + self._fault.late_after, ratio)

    def _registry(self, node: int) -> CollectorRegistry:
        registry = CollectorRegistry()
        store = self._stores[node]
        registry.register(RanksCollector(store))
        registry.register(JobsCollector(store))
        registry.register(LateRanksCollector(store, clock=lambda: self.now))
        registry.register(RankBlocksCollector(store))
        if self._fault.gpus:
            registry.register(_Gpus(self, range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)))
        return registry

    def _has(self, after: float | None) -> bool:
        return after is not None and self._last_step - self.start >= after

    def _hangs(self) -> bool:
        return self._has(self._fault.hung_after)

    def _step(self) -> None:
        spent = [self._spent(rank) for rank in range(len(self._ranks))]
        slowest = max(sum(stages.values()) for stages in spent)
        for counters, stages in zip(self._ranks, spent, strict=True):
            busy = sum(stages.values())
            counters.commit(stages | {"sync": slowest - busy + COMMUNICATION_SECONDS}, busy)
        self._last_step += slowest + COMMUNICATION_SECONDS
        self._judge.add(self._last_step, spent, COMMUNICATION_SECONDS)

    def _spent(self, rank: int) -> dict[str, float]:
        spent = {stage: s * self._random.gauss(1, 0.03) for stage, s in STAGES.items()}
        if rank == LATE_RANK and self.is_late():
            spent["data"] += self._fault.late_seconds * self._random.gauss(1, 0.1)
        return spent

    def _stage_now(self, rank: int) -> str:
        if self._hangs():
            return "data" if rank == LATE_RANK else "sync"
        return random.Random(f"{rank} {self.now}").choices(list(STAGES), list(STAGES.values()))[0]

    def _snapshot(self, rank: int) -> Snapshot:
        counters = self._ranks[rank]
        join = self._fault.join
        return Snapshot(
            job_id=JOB_ID,
            peer_group="all",
            rank=rank,
            world_size=len(self._ranks),
            attempt=0,
            pid=1000 + rank,
            started_timestamp_seconds=self.start,
            sequence=round(self.now),
            heartbeat_timestamp_seconds=self.now,
            steps=counters.steps,
            stage_seconds=dict(counters.stage_seconds),
            busy_seconds=counters.busy_seconds,
            busy_seconds_squared=counters.busy_seconds_squared,
            stage=self._stage_now(rank),
            stage_elapsed_seconds=self.now - self._last_step if self._hangs() else 0.05,
            sync_floor_seconds=COMMUNICATION_SECONDS,
            last_step_timestamp_seconds=self._last_step,
            rank_info={
                "local_rank": str(rank % RANKS_A_NODE),
                "node_rank": str(rank // RANKS_A_NODE),
                "world_size": str(len(self._ranks)),
                "gpu_uuid": f"GPU-{rank}" if self._fault.gpus else "",
            },
            join_coverage=1.0 if join else None,
            verdict=self._judge.verdict().to_json() if join else None,
            verdict_age_seconds=self.now - self._last_step if join else None,
            block_steps=BLOCK_STEPS if counters.block_seconds else 0,
            block_seconds=counters.block_seconds,
        )


class _Gpus:
    """Stub GPU series: the late rank's GPU idles while it loads, and has been hot."""

    def __init__(self, job: FakeJob, ranks: Sequence[int]) -> None:
        self._job = job
        self._ranks = ranks

    def collect(self) -> Iterator[Metric]:
        """Yield what the job dashboard reads of a GPU."""
        yield self._gauge("rankskew_gpu_utilization_ratio", 0.94, 0.61)
        yield self._gauge("rankskew_gpu_memory_used_bytes", 61e9, 61e9)
        yield self._gauge("rankskew_gpu_memory_total_bytes", 80e9, 80e9)
        yield self._gauge("rankskew_gpu_pcie_receive_bytes_per_second", 2.1e9, 0.7e9)
        yield self._gauge("rankskew_gpu_pcie_transmit_bytes_per_second", 0.4e9, 0.2e9)
        yield self._throttling()
        yield self._ranks_on_gpus()

    def _gauge(self, name: str, healthy: float, late: float) -> Metric:
        family = GaugeMetricFamily(name, "Stub.", labels=["gpu", "gpu_uuid"])
        for rank in self._ranks:
            value = (
                late if rank == LATE_RANK and self._job.is_late() else healthy * (1 - 0.004 * rank)
            )
            family.add_metric(_gpu(rank), value)
        return family

    def _throttling(self) -> Metric:
        family = CounterMetricFamily(
            "rankskew_gpu_throttle_seconds_total",
            "Stub.",
            labels=["gpu", "gpu_uuid", "reason"],
        )
        for rank in self._ranks:
            seconds = self._job.now - self._job.start
            hot = 0.08 * seconds if rank == 3 else 0.0
            family.add_metric([*_gpu(rank), "sw_thermal_slowdown"], hot)
            family.add_metric([*_gpu(rank), "gpu_idle"], 0.02 * seconds)
        return family

    def _ranks_on_gpus(self) -> Metric:
        labels = ["gpu", "gpu_uuid", "job_id", "peer_group", "rank"]
        family = GaugeMetricFamily("rankskew_gpu_rank_info", "Stub.", labels=labels)
        for rank in self._ranks:
            family.add_metric([*_gpu(rank), JOB_ID, "all", str(rank)], 1)
        return family


def _gpu(rank: int) -> list[str]:
    return [str(rank % RANKS_A_NODE), f"GPU-{rank}"]


def serve(job: FakeJob, ports: Sequence[int]) -> list[ThreadingHTTPServer]:
    """Serve one node of *job* on each loopback port of *ports*, from daemon threads."""
    lock = threading.Lock()

    def handler(node: int) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    job.advance(time.time())
                    body = job.exposition(node).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keep the terminal quiet."""

        return Handler

    servers = [ThreadingHTTPServer(("127.0.0.1", p), handler(n)) for n, p in enumerate(ports)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return servers


def main() -> None:
    """Serve the job until interrupted: `fake_job.py PORT PORT [late_after [hung_after]]`."""
    ports = [int(port) for port in sys.argv[1:3]]
    late_after, hung_after = (*(float(s) for s in sys.argv[3:5]), None, None)[:2]
    serve(FakeJob(time.time(), Fault(late_after=late_after, hung_after=hung_after)), ports)
    threading.Event().wait()


if __name__ == "__main__":
    main()

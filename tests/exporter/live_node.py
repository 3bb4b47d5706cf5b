"""A node whose ranks step and push, on a clock that the test turns."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exporter.causes.model import Cause, Guess
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.live.page import LiveView, PageNode
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuProcess, GpuSample
from exporter.processes.background import WatchHangs
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.node import node
from tests.exporter.snapshots import snapshot, verdict

START = 1_700_000_000.0
STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}
EVEN = verdict(late=(), slowdown=1.0, gpus_lost={"common": 0.5}, rotating={})
SLOW_DATA = {"data": 0.19, "sync": 0.01}
FIRST_PID = 100
# Why rank 2 is late.
CAUSE = Cause(
    "slow_device",
    "clocks",
    0.92,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C",
    "`nvidia-smi -q -i 2` on gpu-12",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
    (Guess("cpu", "run_queue", 0.2, "it waits for a CPU 9 % of the time, its peers 1 %"),),
)
# A GPU that is busy and well.
GPU = GpuSample(
    0,
    up=True,
    name="NVIDIA H100",
    gpu_busy_percent=97.5,
    memory_total_bytes=80 * 10**9,
    memory_used_bytes=60 * 10**9,
    gpu_temperature_celsius=71,
    power_milliwatts=654_321,
    sm_clock_megahertz=1_900,
    throttle_reasons=0,
    pcie_link_width=16,
    pcie_link_width_max=16,
)


def served(view: LiveView) -> dict[str, Any]:
    """Return what the page gets."""
    summary: dict[str, Any] = json.loads(view.json())
    return summary


class Node:
    """A node, gpu-12, whose ranks push once a second; *now* is both of its clocks.

    The ranks repeat the verdict *said*, read *said_seconds_ago* before the push. *cause* is why
    rank 2 is late, *why_slower* why all are. *behind_seconds* is how far the node's wall clock is
    behind. The ranks' *processes* run on the *gpus*, even if they do not push; /proc may hang.
    """

    def __init__(
        self,
        ranks: int = 4,
        world_size: int | None = None,
        thresholds: Thresholds | None = None,
        gpus: int = 0,
        job_id: str = "demo",
    ) -> None:
        self.now = START
        self.behind_seconds = 0.0
        self.said: dict[str, Any] | None = EVEN
        self.said_seconds_ago = 0.0
        self.cause: Cause | None = None
        self.why_slower: Cause | None = None
        self.job_id = job_id
        self.store = RankStore(clock=lambda: self.now)
        self.jobs = NodeJobs(self.store, thresholds)
        known = {"TORCHELASTIC_RUN_ID": job_id, "WORLD_SIZE": str(ranks or gpus)}
        self.processes = {
            FIRST_PID + rank: process(FIRST_PID + rank, torchrun(rank, **known))
            for rank in range(max(ranks, gpus))
        }
        pids = list(self.processes)
        self.gpus = [
            replace(GPU, index=n, uuid=f"GPU-{n}", processes=tuple(map(GpuProcess, pids[n::gpus])))
            for n in range(gpus)
        ]
        self.processes_hang = False
        self.nvml = node(*self.gpus)
        self.join = RankJoin(self.nvml, self._seen, self.store)
        faults = GpuFaultsCollector(
            self.join, self.store, self.nvml, ExpectedGpus(), Thresholds(), "gpu-12"
        )
        self.view = LiveView(
            self.jobs,
            lambda: gpus,
            PageNode("gpu-12", "http://grafana:3000", self.join, faults.told),
            causes=lambda job_id, rank: self.cause if rank == 2 else None,
            why_slower=lambda job_id, change: self.why_slower,
        )
        self.world_size = world_size or ranks
        self.states = {rank: self.fresh(rank) for rank in range(ranks)}

    def _seen(self) -> Mapping[int, Process]:
        if self.processes_hang:
            raise WatchHangs("reading a process on a GPU in /proc hangs")
        return self.processes

    def fresh(self, rank: int) -> Snapshot:
        """Return a process that has just started, waits, and has finished no step."""
        now = self.now - self.behind_seconds
        return snapshot(
            job_id=self.job_id,
            rank=rank,
            world_size=self.world_size,
            pid=FIRST_PID + rank,
            started_timestamp_seconds=now,
            sequence=0,
            heartbeat_timestamp_seconds=now,
            stage="sync",
            stage_elapsed_seconds=0.1,
            steps=0,
            stage_seconds={},
            busy_seconds=0.0,
            rank_info={"local_rank": str(rank), "gpu_uuid": f"GPU-{rank}"},
        )

    def step(self, stages: dict[str, float] = STAGES) -> None:
        """Let every rank finish one step of *stages*, rank 2 with a slow loader."""
        for rank, state in self.states.items():
            spent = stages | (SLOW_DATA if rank == 2 and stages is STAGES else {})
            busy = sum(seconds for stage, seconds in spent.items() if stage != "sync")
            self.states[rank] = replace(
                state,
                steps=state.steps + 1,
                stage_elapsed_seconds=0.1,
                stage_seconds={s: state.stage_seconds.get(s, 0.0) + spent[s] for s in spent},
                busy_seconds=state.busy_seconds + busy,
                last_step_timestamp_seconds=self.now - self.behind_seconds,
            )

    def wait(self, seconds: int = 1, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Let all but the *silent* ranks push each second, without a step; return the job."""
        for _ in range(seconds):
            self.pass_second(silent)
        (job,) = served(self.view)["jobs"]
        assert isinstance(job, dict)
        return job

    def pass_second(self, silent: tuple[int, ...] = ()) -> None:
        """Let a second pass in which nobody reads the page."""
        self.now += 1
        self.push(silent)
        self.view.sample(self.now, self.now)

    def push(self, silent: tuple[int, ...] = ()) -> None:
        """Let all but the *silent* ranks push."""
        for rank, state in self.states.items():
            if rank not in silent:
                self.states[rank] = replace(
                    state,
                    sequence=state.sequence + 1,
                    stage_elapsed_seconds=state.stage_elapsed_seconds + 1.0,
                    heartbeat_timestamp_seconds=self.now - self.behind_seconds,
                    verdict=self.said,
                    verdict_age_seconds=None if self.said is None else self.said_seconds_ago,
                )
                self.store.put(self.states[rank])

    def run(self, seconds: int = 30, steps: int = 2) -> dict[str, Any]:
        """Run so many *steps* a second for *seconds* and return the job as served at the end."""
        for _ in range(seconds):
            for _ in range(steps):
                self.step()
            self.pass_second()
        return self.wait(0)

    def change(self, *ranks: int, **changes: Any) -> None:
        """Change what these ranks, or all, report from now on."""
        for rank in ranks or tuple(self.states):
            self.states[rank] = replace(self.states[rank], **changes)

    def judged(self, said: dict[str, Any] | None, seconds: int = 3) -> dict[str, Any]:
        """Run, and return the verdict as served when the judge has *said* this."""
        self.said = said
        shown: dict[str, Any] = self.run(seconds)["verdict"]
        return shown


def stepped(**settings: Any) -> Node:
    """Return a node that has run for half a minute."""
    node = Node(**settings)
    node.run()
    return node


def rows(text: str) -> list[list[str]]:
    """Return the columns of a table without its comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[each.strip() for each in line.split("|")] for line in lines]

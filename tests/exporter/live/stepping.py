"""A node whose ranks step and push, on a clock that the test turns."""

import json
from dataclasses import replace
from typing import Any

from exporter.causes.model import Cause
from exporter.live.page import LiveView
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.snapshots import snapshot, verdict

START = 1_700_000_000.0
STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}
EVEN = verdict(late=(), slowdown=1.0, gpus_lost={"common": 0.5}, rotating={})
SLOW_DATA = {"data": 0.19, "sync": 0.01}


def served(view: LiveView) -> dict[str, Any]:
    """Return what the page gets."""
    summary: dict[str, Any] = json.loads(view.json())
    return summary


class Node:
    """A node whose ranks push once a second, on a clock that the test turns.

    They repeat the verdict *said*, read at the moment of the push; *cause* is why rank 2 is late.
    *behind_seconds* is how wrong the node's wall clock is.
    """

    def __init__(
        self,
        ranks: int = 4,
        world_size: int | None = None,
        behind_seconds: float = 0.0,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.now = START
        self.behind_seconds = behind_seconds
        self.said: dict[str, Any] | None = EVEN
        self.cause: Cause | None = None
        self.store = RankStore(clock=lambda: self.now)
        self.why_slower: Cause | None = None
        self.view = LiveView(
            NodeJobs(self.store, thresholds),
            causes=self._cause,
            why_slower=lambda job_id, change: self.why_slower,
        )
        self.world_size = world_size or ranks
        self.states = {rank: self.fresh(rank) for rank in range(ranks)}

    def _cause(self, job_id: str, rank: int) -> Cause | None:
        return self.cause if (job_id, rank) == ("demo", 2) else None

    def fresh(self, rank: int) -> Snapshot:
        now = self.now - self.behind_seconds
        return snapshot(
            job_id="demo",
            rank=rank,
            world_size=self.world_size,
            pid=100 + rank,
            started_timestamp_seconds=now,
            sequence=0,
            heartbeat_timestamp_seconds=now,
            stage="sync",
            stage_elapsed_seconds=0.1,
            steps=0,
            stage_seconds={},
            busy_seconds=0.0,
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

    def push(self, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Let a second pass, every rank but the *silent* push, and return the job as served."""
        self.pass_second(silent)
        jobs: list[dict[str, Any]] = served(self.view)["jobs"]
        return jobs[0]

    def pass_second(self, silent: tuple[int, ...] = ()) -> None:
        """Let a second pass in which nobody reads the page."""
        self.now += 1
        for rank, state in self.states.items():
            if rank not in silent:
                self.states[rank] = replace(
                    state,
                    sequence=state.sequence + 1,
                    stage_elapsed_seconds=state.stage_elapsed_seconds + 1.0,
                    heartbeat_timestamp_seconds=self.now - self.behind_seconds,
                    verdict=self.said,
                    verdict_age_seconds=None if self.said is None else 0.0,
                )
                self.store.put(self.states[rank])
        self.view.sample(self.now, self.now)

    def wait(self, seconds: int, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Let *seconds* pass without a step, and return the job as served at the end."""
        for _ in range(seconds - 1):
            self.pass_second(silent)
        return self.push(silent)

    def run(self, seconds: int, steps: int = 2) -> dict[str, Any]:
        """Run so many *steps* a second for *seconds* and return the job as served at the end."""
        for second in range(seconds):
            for _ in range(steps):
                self.step()
            if second < seconds - 1:
                self.pass_second()
        return self.push()

    def change(self, *ranks: int, **changes: Any) -> None:
        """Change what these ranks, or all, report from now on."""
        for rank in ranks or tuple(self.states):
            self.states[rank] = replace(self.states[rank], **changes)

    def judged(self, said: dict[str, Any] | None) -> dict[str, Any]:
        """Run for a while, and return the verdict as served when the judge has *said* this."""
        self.said = said
        shown: dict[str, Any] = self.run(30)["verdict"]
        return shown


def stepped(**settings: Any) -> Node:
    """Return a node that has run for half a minute."""
    node = Node(**settings)
    node.run(30)
    return node

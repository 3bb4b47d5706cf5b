"""A simulated training job, cheap for thousands of ranks: counters that advance when asked."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from exporter.accounting.step import Charges, charge
from rank_probe.stages import STAGES
from rank_probe.stages import SYNC as SYNC_POSITION

RANKS_PER_NODE: Final = 8

# Share of a rank's own time that each stage takes.
STAGE_SHARES: Final = {
    "optimizer": 0.08,
    "other": 0.05,
    "data": 0.08,
    "h2d": 0.02,
    "forward": 0.26,
    "backward": 0.51,
}
SYNC: Final = STAGES[SYNC_POSITION]
BUSY_SECONDS: Final = 0.5
COMMUNICATION_SECONDS: Final = 0.03
# Standard deviations of a stage's noise from step to step, and of permanent rank differences.
NOISE: Final = 0.02
STATIC_SPREAD: Final = 0.005
# The planted straggler's extra time in each step, as a share of its own usual time.
FAULT_STAGE: Final = "forward"
FAULT_RATIO: Final = 0.15
TOKENS_A_STEP: Final = 32_768
FIRST_STEPS: Final = 1_000
# Minimum length of a block; a rank reports its mean step if no join judges the job.
BLOCK_SECONDS: Final = 30.0
# Steps that are accounted for in full, to know a rank's charge in a mean step.
SAMPLE_STEPS: Final = 2

# What the exporter derives from block_seconds: all but sync, and all.
BLOCK_BUSY: Final = "block_busy"
BLOCK_STEP: Final = "block_step"

State = dict[str, float]


@dataclass(frozen=True)
class Job:
    """*ranks* that do equal work, one of them late by FAULT_RATIO if there is a *straggler*."""

    name: str
    ranks: int
    straggler: int | None = None

    @cached_property
    def step_seconds(self) -> float:
        """Length of every step: that of the usual slowest rank, and the collective."""
        if self.straggler is not None:
            return BUSY_SECONDS * (1 + FAULT_RATIO) + COMMUNICATION_SECONDS
        noise = NOISE * math.hypot(*STAGE_SHARES.values())
        last = noise * math.sqrt(2 * math.log(self.ranks))  # The largest of so many normal numbers.
        return BUSY_SECONDS * (1 + last) + COMMUNICATION_SECONDS

    @cached_property
    def block_steps(self) -> int:
        """Steps in a block: a power of two, so that blocks end at the same steps everywhere."""
        return int(2 ** math.ceil(math.log2(BLOCK_SECONDS / self.step_seconds)))

    @cached_property
    def charges(self) -> "MeanCharges":
        """A rank's charge in a mean step."""
        draw = random.Random(self.ranks)
        steps = [self._step(draw) for _ in range(SAMPLE_STEPS)]
        groups = dict.fromkeys(range(self.ranks), "all")
        return MeanCharges.of([charge(step, groups) for step in steps], self.straggler)

    def _step(self, draw: random.Random) -> dict[int, dict[str, float]]:
        return {
            rank: {
                stage: seconds * draw.gauss(1, NOISE)
                for stage, seconds in self.usual(rank, draw).items()
            }
            for rank in range(self.ranks)
        }

    def usual(self, rank: int, draw: random.Random) -> dict[str, float]:
        """Return the mean seconds per step of *rank* in each stage but sync."""
        seconds = {
            stage: BUSY_SECONDS * share * draw.gauss(1, STATIC_SPREAD)
            for stage, share in STAGE_SHARES.items()
        }
        if rank == self.straggler:
            seconds[FAULT_STAGE] += BUSY_SECONDS * FAULT_RATIO
        return seconds


@dataclass(frozen=True)
class MeanCharges:
    """GPU-seconds per step by stage that the straggler is charged, and each of the others."""

    straggler: Mapping[str, float]
    others: Mapping[str, float]

    @classmethod
    def of(cls, steps: Sequence[Charges], straggler: int | None) -> "MeanCharges":
        """Return the means of *steps*."""
        late, others = dict.fromkeys(STAGE_SHARES, 0.0), dict.fromkeys(STAGE_SHARES, 0.0)
        for step in steps:
            rest = len(step.waited) - (straggler is not None)
            for (rank, stage), seconds in step.caused.items():
                if rank == straggler:
                    late[stage] += seconds / len(steps)
                elif stage in others:
                    others[stage] += seconds / len(steps) / rest
        return cls(late, others)


class Rank:
    """The probe of one rank; *state* has a value for each field or field.key."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._draw = random.Random(f"{job.name} {rank}")
        self._usual = job.usual(rank, self._draw)
        self._is_late = rank == job.straggler
        mean = job.charges.straggler if self._is_late else job.charges.others
        self._charged = [(f"wait_caused_seconds.{stage}", mean[stage]) for stage in STAGE_SHARES]
        self.state: State = dict.fromkeys(fields(), 0.0)
        self._blocks = 0
        self._advance(FIRST_STEPS)

    def show(self, steps: int, now: float) -> State:
        """Return the state after *steps* more than FIRST_STEPS, at *now* in Unix seconds."""
        more = FIRST_STEPS + steps - int(self.state["steps"])
        if more > 0:
            self._advance(more)
            self.state["last_step_timestamp_seconds"] = now - 0.3
        self.state["heartbeat_timestamp_seconds"] = now - 0.5
        return self.state

    def _advance(self, steps: int) -> None:
        state, draw = self.state, self._draw
        # Noise that is independent from step to step shrinks in a mean.
        noise = NOISE / math.sqrt(steps)
        busy = 0.0
        for stage, usual in self._usual.items():
            seconds = steps * usual * draw.gauss(1, noise)
            busy += seconds
            state[f"stage_seconds.{stage}"] += seconds
        whole = steps * self._job.step_seconds
        wait = max(whole - busy, 0.0)
        state[f"stage_seconds.{SYNC}"] += wait
        state["steps"] += steps
        state["busy_seconds"] += busy
        state["busy_seconds_squared"] += busy * busy / steps * (1 + NOISE * NOISE / 3)
        state["sync_floor_seconds"] = COMMUNICATION_SECONDS * draw.gauss(1, 0.01)
        state["samples"] += steps * 8
        state["tokens"] += steps * TOKENS_A_STEP
        state["padding_tokens"] += steps * draw.randrange(2_000, 2_200)
        state["gc_pause_seconds"] += steps * 1e-4
        self._advance_join(steps, whole)
        self._end_block()

    def _advance_join(self, steps: int, seconds: float) -> None:
        state, draw = self.state, self._draw
        for key, mean in self._charged:
            state[key] += steps * mean * draw.uniform(0.9, 1.1)
        if self._is_late:
            state[f"paced_steps.{FAULT_STAGE}"] += steps
        elif self._job.straggler is None and draw.random() < steps / self._job.ranks:
            state[f"paced_steps.{FAULT_STAGE}"] += 1
        state["joined_seconds"] += seconds

    def _end_block(self) -> None:
        blocks = int(self.state["steps"]) // self._job.block_steps
        if blocks == self._blocks:
            return
        self._blocks = blocks
        noise = NOISE / math.sqrt(self._job.block_steps)
        means = {stage: mean * self._draw.gauss(1, noise) for stage, mean in self._usual.items()}
        self.state |= {f"block_seconds.{stage}": mean for stage, mean in means.items()}
        self.state[BLOCK_BUSY] = sum(means.values())
        self.state[BLOCK_STEP] = max(self._job.step_seconds, self.state[BLOCK_BUSY])


def fields() -> list[str]:
    """Return the names of everything that changes: a field of Snapshot, or field.key for a dict."""
    timed = [*STAGE_SHARES, SYNC]
    return [
        "steps",
        "last_step_timestamp_seconds",
        "heartbeat_timestamp_seconds",
        *(f"stage_seconds.{stage}" for stage in timed),
        "busy_seconds",
        "busy_seconds_squared",
        "sync_floor_seconds",
        "samples",
        "tokens",
        "padding_tokens",
        "gc_pause_seconds",
        *join_fields(),
    ]


def join_fields() -> list[str]:
    """Return those of fields() that only a rank with the join has."""
    # Paced steps are exposed without their stage.
    caused = (f"wait_caused_seconds.{stage}" for stage in STAGE_SHARES)
    return [f"paced_steps.{FAULT_STAGE}", *caused, "joined_seconds"]


def block_fields() -> list[str]:
    """Return what changes at the end of each block, exposed only by a rank without the join."""
    return [f"block_seconds.{stage}" for stage in STAGE_SHARES]

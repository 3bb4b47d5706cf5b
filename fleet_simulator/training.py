"""A simulated training job: how long its steps take, and what a fault changes in them.

Cheap for thousands of ranks: a rank's counters advance by the mean of many steps at once, when
somebody asks. All times are seconds since the start of the simulation, and negative before it.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from fleet_simulator.faults import PlantedFault, Silence
from fleet_simulator.plan import JobPlan
from rankskew.accounting.step import charge

PEER_GROUP: Final = "all"
SYNC: Final = "sync"
# Share of a rank's own time that each stage takes.
STAGE_SHARES: Final = {
    "optimizer": 0.08,
    "other": 0.05,
    "data": 0.08,
    "h2d": 0.02,
    "forward": 0.26,
    "backward": 0.51,
}
BUSY_SECONDS: Final = 0.5
COMMUNICATION_SECONDS: Final = 0.03
# Standard deviations of a stage's noise from step to step, and of permanent differences of ranks.
NOISE: Final = 0.02
STATIC_SPREAD: Final = 0.005
# How long the job has run when the simulation starts, and how long its processes took to start.
RUN_SECONDS: Final = 3600.0
# Steps that are accounted for in full, to know each rank's charge in a mean step.
SAMPLE_STEPS: Final = 2
SAMPLE_STEPS_ROTATING: Final = 16
# In a hang or without steps nothing advances.
HALTING: Final = (Silence.STUCK, Silence.FROZEN, Silence.STARTING, Silence.FINISHED)

Stages = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MeanCharges:
    """GPUs lost in a mean step: to each late rank, and to all others together, by stage."""

    late: Mapping[int, Stages]
    rotating: Stages


@dataclass(frozen=True)
class Phase:
    """A part of the run in which the same *faults* are there; it begins at *begins_seconds*."""

    plan: JobPlan
    faults: tuple[PlantedFault, ...]
    begins_seconds: float

    @property
    def halts(self) -> bool:
        """Return whether no step is finished."""
        return any(fault.kind.silence in HALTING for fault in self.faults)

    def faults_of(self, rank: int) -> list[PlantedFault]:
        """Return the faults that affect *rank*."""
        return [fault for fault in self.faults if fault.has(*self.plan.place(rank))]

    def extra(self, rank: int) -> dict[str, float]:
        """Return the seconds per step by stage that *rank* needs more than its peers, always."""
        late = (each for each in self.faults_of(rank) if not each.kind.rotates)
        return _extra(each for each in late if not each.kind.slows_all)

    @cached_property
    def turns(self) -> dict[str, float]:
        """Return the seconds by stage that one rank needs in addition, another in each step."""
        return _extra(fault for fault in self.faults if fault.kind.rotates)

    @cached_property
    def of_all(self) -> dict[str, float]:
        """Return the seconds by stage that every rank needs in addition, in each step."""
        return _extra(fault for fault in self.faults if fault.kind.slows_all)

    @cached_property
    def late(self) -> dict[int, dict[str, float]]:
        """Return the extra() of each rank that has any."""
        ranks = range(self.plan.ranks) if self.faults else ()
        return {rank: extra for rank in ranks if (extra := self.extra(rank))}

    @cached_property
    def step_seconds(self) -> float:
        """Return the length of a step: that of the usual slowest rank, and the collective."""
        # The largest of so many normal numbers.
        last = NOISE * math.hypot(*STAGE_SHARES.values()) * math.sqrt(2 * math.log(self.plan.ranks))
        most = max((sum(extra.values()) for extra in self.late.values()), default=0.0)
        most += sum(self.turns.values())
        busy = BUSY_SECONDS + sum(self.of_all.values())
        return busy + max(most, BUSY_SECONDS * last) + COMMUNICATION_SECONDS

    @cached_property
    def charges(self) -> MeanCharges:
        """Return what the late ranks, and all others, cost in a mean step."""
        draw = random.Random(self.plan.ranks)
        groups = dict.fromkeys(range(self.plan.ranks), PEER_GROUP)
        count = SAMPLE_STEPS_ROTATING if self.turns else SAMPLE_STEPS
        late: dict[int, dict[str, float]] = {rank: {} for rank in self.late}
        others: dict[str, float] = {}
        for _ in range(count):
            for (rank, stage), waited in charge(self._step(draw), groups).caused.items():
                mine = late.get(rank, others)
                mine[stage] = mine.get(stage, 0.0) + waited / count / self.step_seconds
        return MeanCharges(late, others)

    def _step(self, draw: random.Random) -> dict[int, dict[str, float]]:
        step = {
            rank: {
                stage: BUSY_SECONDS * share * draw.gauss(1, NOISE)
                for stage, share in STAGE_SHARES.items()
            }
            for rank in range(self.plan.ranks)
        }
        for rank, extra in (*self.late.items(), (draw.randrange(self.plan.ranks), self.turns)):
            for stage, seconds in extra.items():
                step[rank][stage] = step[rank].get(stage, 0.0) + seconds
        return step


def _extra(faults: Iterable[PlantedFault]) -> dict[str, float]:
    found: dict[str, float] = {}
    for fault in faults:
        for stage, share in fault.kind.extra.items():
            found[stage] = found.get(stage, 0.0) + share * BUSY_SECONDS
    return found


class Training:
    """The steps of the job of *plan* over time."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        begins = sorted({-RUN_SECONDS, *(max(f.begins_seconds, -RUN_SECONDS) for f in plan.faults)})
        self.phases = [
            Phase(plan, tuple(f for f in plan.faults if f.begins_seconds <= begin), begin)
            for begin in begins
        ]

    def phase(self, at: float) -> Phase:
        """Return the phase of the run at *at*."""
        begun = [phase for phase in self.phases if phase.begins_seconds <= at]
        return begun[-1] if begun else self.phases[0]

    def has(self, silence: Silence, at: float) -> bool:
        """Return whether a fault of that effect is there at *at*."""
        return any(fault.kind.silence is silence for fault in self.phase(at).faults)

    def steps(self, at: float) -> int:
        """Return how many steps the job has finished by *at*."""
        return sum(count for _, count in self.stretches(-RUN_SECONDS, at))

    def last_step_seconds(self, at: float) -> float:
        """Return when the last step before *at* ended."""
        phase = self.phase(at)
        if phase.halts:
            return phase.begins_seconds
        return at - (at - phase.begins_seconds) % phase.step_seconds

    def stretches(self, since: float, until: float) -> Iterator[tuple[Phase, int]]:
        """Yield each phase between *since* and *until*, and the steps that ended in it."""
        ends = [*(phase.begins_seconds for phase in self.phases), math.inf]
        for phase, (begin, end) in zip(self.phases, pairwise(ends), strict=True):
            if phase.halts or until <= begin or since >= end:
                continue
            seconds = phase.step_seconds
            first = int((max(since, begin) - begin) / seconds)
            yield phase, int((min(until, end) - begin) / seconds) - first

"""A simulated training job: how long its steps take, what a fault changes, and the verdict on it.

Cheap for thousands of ranks: when somebody asks, a rank's counters advance by many mean steps at
once. The plan says which ranks are late, so the verdict needs no judge. All times are seconds
since the start of the simulation, and negative before it.
"""

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from exporter.evidence.peers import quantiles_of
from fleet_simulator.faults import PlantedFault, Scope, Silence
from fleet_simulator.plan import JobPlan, node_name
from rank_probe.judge.common import together
from rank_probe.judge.verdict import (
    MOST_LATE,
    MOST_PAUSES,
    NO_SYNC,
    NODE,
    PERSISTENT,
    Change,
    Late,
    Pause,
    Stall,
    Verdict,
)
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
# How many steps are accounted for in full, to estimate each rank's charge in a mean step.
SAMPLE_STEPS: Final = 2
SAMPLE_STEPS_ROTATING: Final = 16
# With any of these, no step finishes.
HALTING: Final = (Silence.STUCK, Silence.FROZEN, Silence.STARTING, Silence.FINISHED)
# How often rank 0 judges, and how much its one-minute means vary between rounds.
ROUND_SECONDS: Final = 5.0
FIGURE_NOISE: Final = 0.02
UNJUDGED: Final = (Silence.UNJOINED, Silence.STARTING, Silence.OFF)

Stages = Mapping[str, float]
# The figures that each rank of the job, on any node, has posted for its peers.
JoinedFigures = dict[int, Mapping[str, float]]


class MeanCharges(NamedTuple):
    """GPUs lost in a mean step: to each late rank, and to all others together, by stage."""

    late: Mapping[int, Stages]
    others: Stages


@dataclass(frozen=True)
class Phase:
    """A part of the run with the same *faults* throughout; it begins at *begins_seconds*."""

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

    @cached_property
    def turns(self) -> dict[str, float]:
        """Return the additional seconds by stage of one rank, a different rank in each step."""
        return _extra(fault for fault in self.faults if fault.kind.rotates)

    @cached_property
    def of_all(self) -> dict[str, float]:
        """Return the additional seconds by stage of every rank in each step."""
        return _extra(fault for fault in self.faults if fault.kind.slows_all)

    @cached_property
    def late(self) -> dict[int, dict[str, float]]:
        """Return the additional seconds by stage of each late rank in each step."""
        late = [each for each in self.faults if not (each.kind.rotates or each.kind.slows_all)]
        places = ((rank, self.plan.place(rank)) for rank in range(self.plan.ranks) if late)
        found = {rank: _extra(f for f in late if f.has(*place)) for rank, place in places}
        return {rank: extra for rank, extra in found.items() if extra}

    @cached_property
    def step_seconds(self) -> float:
        """Return the length of a step: the expected slowest rank's own time, and the collective."""
        # The expected maximum of as many normal numbers as there are ranks.
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
        """Return whether a fault with that effect is present at *at*."""
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


class RepeatedVerdict(NamedTuple):
    """A verdict, also as each rank repeats it in JSON, and when it was made."""

    verdict: Verdict
    json: dict[str, Any]
    judged_seconds: float


class Judged:
    """What the judge of the job says over time; the same on all of its nodes."""

    def __init__(self, training: Training) -> None:
        self._training = training
        plan = training.plan
        self._facts = {rank: {"node": node_name(plan.place(rank)[0])} for rank in range(plan.ranks)}
        self._round: int | None = None
        self._said: RepeatedVerdict | None = None

    def at(self, at: float) -> RepeatedVerdict | None:
        """Return the newest verdict at *at*, in seconds of the simulation; None without a join."""
        number = int(at // ROUND_SECONDS)
        if number != self._round:
            self._round = number
            phase = self._training.phase(at)
            # Without steps there is nothing to judge.
            judged = phase.begins_seconds - 1e-3 if phase.halts else number * ROUND_SECONDS
            verdict = self._verdict(judged)
            self._said = RepeatedVerdict(verdict, verdict.to_json(), judged) if verdict else None
        return self._said

    def _verdict(self, at: float) -> Verdict | None:
        training = self._training
        phase = training.phase(at)
        if any(training.has(silence, at) for silence in UNJUDGED):
            return None
        unseen = {each.node for each in phase.faults if each.kind.silence is Silence.UNSEEN}
        absent = len(unseen) * training.plan.gpus
        steps, ranks = training.steps(at), {PEER_GROUP: training.plan.ranks - absent}
        if training.has(Silence.UNTIMED, at):
            return Verdict(steps, ranks, reason=NO_SYNC)
        late = [_late(phase, rank, at) for rank in phase.late]
        late.sort(key=lambda each: -each.gpus_lost)
        draw = random.Random(f"{training.plan.job_id} {self._round}")
        noise = draw.gauss(1, FIGURE_NOISE)
        lost = sum(each.gpus_lost for each in late)
        longest = max((sum(extra.values()) for extra in phase.late.values()), default=0.0)
        others = {stage: gpus * noise for stage, gpus in phase.charges.others.items()}
        stalls, pauses = _stops(phase, at, steps)
        kind = "pause" if pauses else "rotating" if phase.turns else "noise"
        return Verdict(
            step=steps,
            ranks=ranks,
            absent=absent,
            step_seconds=phase.step_seconds * draw.gauss(1, FIGURE_NOISE / 10),
            slowdown=phase.step_seconds / (phase.step_seconds - longest),
            gpus_lost={
                "group": 0.0,
                "persistent": lost * noise,
                "rotating": 0.0,
                "common": sum(ranks.values()) * COMMUNICATION_SECONDS / phase.step_seconds,
                "shared": sum(ranks.values()) * sum(each.share for each in stalls),
                kind: sum(others.values()),
            },
            rotating=others if kind == "rotating" else {},
            late=tuple(late[:MOST_LATE]),
            together=tuple(together(late, self._facts, self._facts)),
            changes=self._changes(phase, sum(ranks.values()), at),
            pauses=tuple(pauses),
            stalls=tuple(stalls),
        )

    def _changes(self, phase: Phase, ranks: int, at: float) -> tuple[Change, ...]:
        """Return the change if the job is slower; the real judge needs a minute or two for it."""
        slower = [f for f in phase.faults if f.kind.slows_all and not f.kind.every_steps]
        if not slower:
            return ()
        stage = max(phase.of_all, key=lambda stage: phase.of_all[stage])
        onset = max(min(each.begins_seconds for each in slower), -RUN_SECONDS)
        # The ratio of whole steps, whatever has made them longer since then.
        longer = phase.step_seconds / self._training.phase(onset - 1).step_seconds
        return (
            Change(
                peer_group=PEER_GROUP,
                stage=stage,
                ratio=1 + phase.of_all[stage] / (BUSY_SECONDS * STAGE_SHARES[stage]),
                since_seconds=at - onset,
                step_ratio=longer,
                gpus=ranks * (1 - 1 / longer),
            ),
        )


def of_peers(posted: JoinedFigures, late: Collection[int]) -> dict[str, list[float]]:
    """Return what a late rank reads: the tertiles and median of ranks that are not *late*."""
    others = [each for rank, each in posted.items() if rank not in late]
    return {name: list(each) for name, each in quantiles_of(others).items()}


def _stops(phase: Phase, at: float, steps: int) -> tuple[list[Stall], list[Pause]]:
    """Return the stalls of all ranks by *at*, and the last pauses, each of a different rank."""
    stalls, pauses, ranks = [], [], phase.plan.ranks
    for fault in (each for each in phase.faults if each.kind.every_steps):
        ((stage, mean),) = _extra([fault]).items()
        every = fault.kind.every_steps
        apart, stop = every * phase.step_seconds, every * mean
        if not fault.kind.rotates:
            stalls.append(Stall(stage, mean / phase.step_seconds, every, stop))
            continue
        number, age = divmod(at - fault.begins_seconds, apart)
        for before in range(min(int(number) + 1, MOST_PAUSES)):
            rank, since = int(number - before) % ranks, age + before * apart
            step = steps - int(since / phase.step_seconds)
            pauses.append(Pause(rank, stage, step, since, stop, stop * (ranks - 1)))
    return stalls, pauses


def _late(phase: Phase, rank: int, at: float) -> Late:
    extra = phase.late[rank]
    faults = phase.faults_of(rank)
    since = at - max(min(fault.begins_seconds for fault in faults), -RUN_SECONDS)
    return Late(
        rank=rank,
        peer_group=PEER_GROUP,
        stage=max(extra, key=lambda stage: extra[stage]),
        kind=NODE if any(fault.kind.scope is Scope.NODE for fault in faults) else PERSISTENT,
        ratio=sum(extra.values()) / BUSY_SECONDS,
        gpus=phase.charges.late[rank],
        since_seconds=since,
        steps=int(since / phase.step_seconds),
        confidence=9.0,
    )

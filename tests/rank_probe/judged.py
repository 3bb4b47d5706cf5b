"""Synthetic training jobs with random steps of every rank, and the judge's verdicts on them.

The judge runs as in the join: at intervals, on all steps so far.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rank_probe.judge.common import Facts
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import Late, Verdict
from rank_probe.judge.windows import Leader
from rankskew.accounting.windows import PlainReduction

# Share of a rank's own time that each stage takes.
STAGE_SHARES = {"optimizer": 0.08, "other": 0.07, "data": 0.1, "forward": 0.25, "backward": 0.5}
START_SECONDS = 5.0
# In the first step rank 0 compiles what the others then read from its cache.
COMPILE_SECONDS = 6.0
RESTART_PAUSE_SECONDS = 20.0
NEVER = float("inf")


@dataclass(frozen=True)
class Fault:
    """*rank* takes *ratio* of a usual step longer in *stage*, every *every* steps.

    *rank* None means a different rank in each step, drawn at random.
    """

    rank: int | None
    stage: str
    ratio: float
    every: int = 1
    start_seconds: float = 0.0
    end_seconds: float = NEVER


@dataclass(frozen=True)
class Job:
    """A synchronous job; *group_work* is the work of each peer group relative to the first."""

    ranks: int = 4
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    seconds: float = 240.0
    busy_seconds: float = 0.5
    communication_ratio: float = 0.06
    stage_noise: float = 0.03
    common_noise: float = 0.03
    static_spread: float = 0.005
    group_work: tuple[float, ...] = (1.0,)
    slow_together_seconds: float = NEVER
    restart_seconds: float = NEVER
    sync_measured: bool = True
    ranks_per_node: int = 8

    def group(self, rank: int) -> int:
        """Return the peer group of *rank*: equal sizes, ranks in order."""
        return rank * len(self.group_work) // self.ranks


@dataclass(frozen=True)
class Step:
    """One step of all ranks, ended by the release; *number* counts from the last start."""

    number: int
    end_seconds: float
    stages: list[dict[str, float]]
    sync: list[float]

    @property
    def busy(self) -> list[float]:
        """Own time of each rank: the step without the wait."""
        return [sum(stages.values()) for stages in self.stages]


def simulate(job: Job) -> list[Step]:
    """Run *job* to its end and return all steps."""
    draw = random.Random(job.seed)
    spread = [
        {stage: 1 + draw.gauss(0, job.static_spread) for stage in STAGE_SHARES}
        for _ in range(job.ranks)
    ]
    steps: list[Step] = []
    now, number, restarted = START_SECONDS, 0, False
    while now < job.seconds:
        if now >= job.restart_seconds and not restarted:
            now, number, restarted = now + RESTART_PAUSE_SECONDS, 0, True
        stages = _own_times(job, draw, spread, now, number)
        wire = job.busy_seconds * job.communication_ratio * (1 + abs(draw.gauss(0, 0.1)))
        busy = [sum(of_rank.values()) for of_rank in stages]
        length = max(busy) + wire
        now, number = now + length, number + 1
        steps.append(Step(number, now, stages, [length - own for own in busy]))
    return steps


def _own_times(
    job: Job, draw: random.Random, spread: list[dict[str, float]], now: float, number: int
) -> list[dict[str, float]]:
    common = job.busy_seconds * (1 + draw.gauss(0, job.common_noise))
    common *= 1.5 if now >= job.slow_together_seconds else 1
    times = []
    for rank in range(job.ranks):
        usual = common * job.group_work[job.group(rank)]
        noise = {stage: max(0.1, 1 + draw.gauss(0, job.stage_noise)) for stage in STAGE_SHARES}
        times.append(
            {s: usual * share * spread[rank][s] * noise[s] for s, share in STAGE_SHARES.items()}
        )
    if number == 0:
        times[0]["forward"] += COMPILE_SECONDS
    for fault in job.faults:
        if fault.start_seconds <= now < fault.end_seconds and number % fault.every == 0:
            late = times[draw.randrange(job.ranks) if fault.rank is None else fault.rank]
            late[fault.stage] = late.get(fault.stage, 0.0) + fault.ratio * job.busy_seconds
    return times


# Changes the stages of a step; gets the step and when it would end.
Alter = Callable[[Step, float], None]


def altered(job: Job, alter: Alter) -> list[Step]:
    """Return the steps of *job* as *alter* changes them, with waits and later steps adjusted."""
    steps, later = [], 0.0
    for step in simulate(job):
        was = max(step.busy)
        wire = step.busy[0] + step.sync[0] - was
        alter(step, step.end_seconds + later)
        longest = max(step.busy)
        later += longest - was
        sync = [longest + wire - own for own in step.busy]
        steps.append(replace(step, end_seconds=step.end_seconds + later, sync=sync))
    return steps


def gpus_lost(steps: list[Step], end_seconds: float, window_seconds: float = 60.0) -> float:
    """Return the GPUs that wait for the slowest rank of each step: the accounting, exact."""
    window = [s for s in steps if end_seconds - window_seconds < s.end_seconds <= end_seconds]
    waited = sum(max(step.busy) * len(step.busy) - sum(step.busy) for step in window)
    return waited / sum(step.busy[0] + step.sync[0] for step in window)


# How often the ranks post their steps, and rank 0 judges them.
EVERY_SECONDS: Final = 2.0

Named = set[tuple[int, str, str]]


@dataclass(frozen=True)
class Incident:
    """A rank that was named without a gap under one stage and kind; times since the job's start.

    *first* describes the rank when it was *named*, *last* before it was *cleared*. *cleared* is
    None if the job ended before.
    """

    rank: int
    stage: str
    kind: str
    named: float
    onset: float
    first: Late
    last: Late
    cleared: float | None = None


@dataclass
class Judged:
    """What the judge said of a job: each verdict and when, and the incidents in them, in order."""

    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    _open: dict[tuple[int, str, str], Incident] = field(default_factory=dict)

    @property
    def last(self) -> Verdict:
        """The last verdict."""
        return self.verdicts[-1][1]

    @property
    def named(self) -> Named:
        """Every rank that was ever named, with its stages and kinds."""
        return {(each.rank, each.stage, each.kind) for each in self.incidents}

    def add(self, now: float, verdict: Verdict) -> None:
        """Record the *verdict* given at the time *now*."""
        self.verdicts.append((now, verdict))
        said = {(each.rank, each.stage, each.kind): each for each in verdict.late}
        for key in self._open.keys() - said.keys():
            self.incidents.append(replace(self._open.pop(key), cleared=now))
        for key, late in said.items():
            began = Incident(*key, now, now - late.since_seconds, late, late)
            self._open[key] = replace(self._open.get(key, began), last=late)

    def end(self) -> None:
        """Record the end of the job; a rank that is late now was never cleared."""
        self.incidents += self._open.values()
        self.incidents.sort(key=lambda each: (each.named, each.rank))


def judged(job: Job, every_seconds: float = EVERY_SECONDS, facts: Facts | None = None) -> Judged:
    """Return what the judge says of *job*; *facts* are what is known of its ranks."""
    return judged_steps(job, simulate(job), every_seconds, facts=facts)


def judged_steps(
    job: Job,
    steps: list[Step],
    every_seconds: float = EVERY_SECONDS,
    work: Callable[[Step], float] = lambda _: 0.0,
    facts: Facts | None = None,
    every: Callable[[Step], int] = lambda _: 1,
) -> Judged:
    """Return what the judge says of the *steps* of *job*; a start begins anew.

    *work* returns a rank's work in a step; one in *every* so many steps is compared.
    """
    found = Judged()
    groups = {rank: f"g{job.group(rank)}" for rank in range(job.ranks)}
    nodes = {rank: rank // job.ranks_per_node for rank in groups}
    given = 0.0
    leaders: list[Leader] = []
    due = 0.0
    for step in steps:
        if step.number == 1:
            reduction = PlainReduction(groups, nodes)
            judge, leaders = Judge(reduction, facts), []
        given += work(step)
        if step.number % every(step) == 0:
            leaders.append(reduction.add(step.number, vectors(job, step), step.end_seconds))
        if step.end_seconds >= due or step is steps[-1]:
            mark = reduction.mark(step.end_seconds)
            found.add(step.end_seconds, judge.judge(mark, leaders, step=step.number, work=given))
            leaders, due = [], step.end_seconds + every_seconds
    found.end()
    return found


def vectors(job: Job, step: Step) -> Mapping[int, Mapping[str, float]]:
    """Return what each rank of *job* measured of *step*: seconds by stage."""
    return {
        rank: {**stages, "sync": step.sync[rank]} if job.sync_measured else stages
        for rank, stages in enumerate(step.stages)
    }


def mean_step_seconds(steps: list[Step], since: float = 0.0) -> float:
    """Return how long the *steps* that ended after *since* took, of one start."""
    lengths = [step.busy[0] + step.sync[0] for step in steps if step.end_seconds > since]
    return sum(lengths) / len(lengths)

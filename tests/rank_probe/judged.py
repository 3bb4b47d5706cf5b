"""Runs the judge over a simulated job as the join does: every so often, on all steps until then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rank_probe.judge.common import Facts
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import Late, Verdict
from rank_probe.judge.windows import Leader
from rankskew.accounting.windows import PlainReduction
from tests.alerts.jobs import Job, Step, simulate

# The ranks post their steps, and rank 0 judges them, every so often.
EVERY_SECONDS: Final = 2.0

Named = set[tuple[int, str, str]]


@dataclass(frozen=True)
class Incident:
    """A rank that was named without a gap under one stage and kind; times since the job's start.

    *first* is how it was described when it was *named*, *last* before it was *cleared*, which is
    None where the job ended before.
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
        """Note what was said *now*."""
        self.verdicts.append((now, verdict))
        said = {(each.rank, each.stage, each.kind): each for each in verdict.late}
        for key in self._open.keys() - said.keys():
            self.incidents.append(replace(self._open.pop(key), cleared=now))
        for key, late in said.items():
            began = Incident(*key, now, now - late.since_seconds, late, late)
            self._open[key] = replace(self._open.get(key, began), last=late)

    def end(self) -> None:
        """Note that the job is over; who is late now has not been cleared."""
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
) -> Judged:
    """Return what the judge says of the *steps* of *job*; a start begins anew.

    *work* is what a rank is given in a step.
    """
    found = Judged()
    given = 0.0
    leaders: list[Leader] = []
    due = 0.0
    for step in steps:
        if step.number == 1:
            reduction = reduction_of(job)
            judge, leaders = Judge(reduction, facts), []
        given += work(step)
        leaders.append(reduction.add(step.number, vectors(job, step), step.end_seconds))
        if step.end_seconds >= due or step is steps[-1]:
            mark = reduction.mark(step.end_seconds)
            found.add(step.end_seconds, judge.judge(mark, leaders, step=step.number, work=given))
            leaders, due = [], step.end_seconds + every_seconds
    found.end()
    return found


def reduction_of(job: Job) -> PlainReduction:
    """Return the reduction for the ranks of *job*, of no steps yet."""
    ranks = range(job.ranks)
    return PlainReduction(
        {rank: f"g{job.group(rank)}" for rank in ranks},
        {rank: rank // job.ranks_per_node for rank in ranks},
    )


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

"""How soon the judge tells that many ranks of a job, or all, take longer than before.

    python -m benchmarks.accuracy.changes [--seeds 10]

Steps are drawn at random, and go through rank 0's merge to the judge as in a job (a quarter of an
hour on two CPUs). Each stage of each rank varies by RANK_DEVIATION in each step, and all ranks
together by COMMON_DEVIATION. Whole jobs take 3 % of a step longer in one stage after half an hour;
of sets, the late ranks take 30 % longer after ten minutes. Healthy jobs of eight ranks go on for
ten hours. Writes results/changes.json and results/no_changes.json.
"""

import argparse
import os
import random
import statistics
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.accuracy.false_names import KINDS, RANKS, Kind, Noise, remembering, told
from benchmarks.accuracy.plan import CHANGE_STAGES, SHARES
from benchmarks.report import show, write
from rank_probe.join.align import Aligned
from rank_probe.join.charge import use_one_cpu
from rank_probe.join.merge import Merger
from rank_probe.judge.verdict import MILD, Span, Verdict
from rank_probe.wire.stages import STAGES

NODE_RANKS, RACK_NODES = 8, 2
RANK_DEVIATION, COMMON_DEVIATION, EXCHANGE_SHARE = 0.03, 0.03, 0.06
# Rank 0 judges what is new every so often.
ROUND_SECONDS: Final = 2.0
# A merge waits for two thirds of its time.
MERGES_PER_CPU: Final = 3
# Healthy jobs last so long, with steps of so many seconds; one is drawn for each seed.
HEALTHY_HOURS, HEALTHY_STEPS, HEALTHY_SEEDS = 10.0, (1.0, 2.0), range(1, 2)
# After so long, steps that become longer take three times as long as at first.
LONGER_SECONDS: Final = 5 * 3600.0


@dataclass(frozen=True)
class Case:
    """A job of so many *ranks*, of which *late* take *more* of a step longer *after* so long.

    It must be told within *due* seconds.
    """

    name: str
    ranks: int
    step_seconds: float
    late: tuple[int, ...]
    more: float
    after: float
    due: float

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are late."""
        return len(self.late) == self.ranks


def whole(ranks: int, step_seconds: float) -> Case:
    """Return a job that becomes 3 % slower after half an hour."""
    late = tuple(range(ranks))
    return Case("whole job, 3 %", ranks, step_seconds, late, 0.03, 1800.0, 300.0)


def some(name: str, ranks: int, late: Collection[int]) -> Case:
    """Return a job of which the ranks *late* become 30 % slower after ten minutes."""
    return Case(name, ranks, 0.5, tuple(sorted(late)), 0.3, 600.0, 60.0)


CASES: Final = (
    *(whole(ranks, step) for step in (0.5, 1.0, 2.0) for ranks in (8, 64, 1024)),
    some("half", 64, range(1, 64, 2)),
    some("five of eight", 8, range(5)),
    some("three quarters", 64, [rank for rank in range(64) if rank % 4]),
    some("one node of four", 4 * NODE_RANKS, range(NODE_RANKS, 2 * NODE_RANKS)),
    some("two nodes of eight", 8 * NODE_RANKS, range(3 * NODE_RANKS, 5 * NODE_RANKS)),
    some("one rack of four", 8 * NODE_RANKS, range(RACK_NODES * NODE_RANKS)),
)


def all_drift(draw: random.Random, step_seconds: float) -> Noise:
    """2 % that last for ten minutes, of all ranks together, and 2 % of each step and rank."""
    last = remembering(draw, 0.02, 600 / step_seconds)
    while True:
        now = next(last)
        yield [1 + now + draw.gauss(0, 0.02) for _ in range(RANKS)]


def longer(draw: random.Random, step_seconds: float) -> Noise:
    """Steps that take three times as long after five hours, and 3 % of each rank by itself."""
    slower = 1.0
    while True:
        yield [slower * (1 + draw.gauss(0, 0.03)) for _ in range(RANKS)]
        slower = min(slower + 2 * slower * step_seconds / LONGER_SECONDS, 3.0)


HEALTHY: Final[dict[str, Kind]] = KINDS | {"all drift": all_drift, "longer and longer": longer}


class SimulatedJob:
    """The ranks of *case*, each with its own pace; *seed* chooses the stage that is late."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.stage = CHANGE_STAGES[seed % len(CHANGE_STAGES)]
        self.now = 0.0
        self._draw = torch.Generator().manual_seed(seed)
        self._steps = 0
        ranks = torch.arange(case.ranks)
        self._nodes, self._groups = ranks // NODE_RANKS, torch.zeros_like(ranks)
        usual = [SHARES.get(stage, 0.0) * case.step_seconds for stage in STAGES[:-1]]
        self._usual = torch.tensor(usual, dtype=torch.float64)
        self._more = torch.zeros(case.ranks, len(usual), dtype=torch.float64)
        self._more[list(case.late), STAGES.index(self.stage)] = case.more * case.step_seconds
        facts = {rank: _facts(rank) for rank in range(case.ranks)}
        self._merger = Merger(case.ranks, facts)

    def judged(self) -> Verdict:
        """Let a round pass, and return the verdict on its steps."""
        own = self._own(max(1, round(ROUND_SECONDS / self.case.step_seconds)))
        busy = own.sum(dim=2)
        length = busy.amax(dim=1) + EXCHANGE_SHARE * self.case.step_seconds
        self.now += float(length.sum())
        spent = torch.cat([own, (length[:, None] - busy)[:, :, None]], dim=2)
        first, self._steps = self._steps, self._steps + len(own)
        numbers, ranks = list(range(first + 1, self._steps + 1)), range(self.case.ranks)
        microseconds = (spent * 1e6).to(torch.int32)
        aligned = Aligned(numbers, ranks, microseconds, self._groups, self._nodes)
        return self._merger.judge(aligned, {0: "all"}, self.now)

    def _own(self, steps: int) -> Tensor:
        """Draw so many *steps* [steps, ranks, stages without sync], in seconds."""
        shape = (steps, self.case.ranks, len(self._usual))
        alone = 1 + RANK_DEVIATION * torch.randn(shape, generator=self._draw, dtype=torch.float64)
        together = torch.randn((steps, 1, 1), generator=self._draw, dtype=torch.float64)
        usual = self._usual * alone * (1 + COMMON_DEVIATION * together)
        return usual + self._more if self.now >= self.case.after else usual


def _facts(rank: int) -> dict[str, str]:
    node = rank // NODE_RANKS
    return {"node": f"n{node}", "rack": f"r{node // RACK_NODES}"}


@dataclass(frozen=True)
class Outcome:
    """After how many *seconds* the truth was told, None if never; *wrong* is what else was told."""

    seconds: float | None
    wrong: int


def outcome(case: Case, seed: int) -> Outcome:
    """Judge one job until twice as long after its change as it may take to tell it."""
    use_one_cpu()
    job = SimulatedJob(case, seed)
    onset: float | None = None
    told: float | None = None
    wrong: set[tuple[str, int | None]] = set()
    while onset is None or job.now < onset + 2 * case.due:
        if onset is None and job.now >= case.after:
            onset = job.now
        verdict = job.judged()
        said = _said(verdict)
        right = set() if onset is None else _right(case, job.stage)
        wrong |= said - right
        # A set is told when each of its ranks is, and no other.
        if told is None and onset is not None and said == right:
            told = job.now - onset
    return Outcome(told, len(wrong))


def _right(case: Case, stage: str) -> set[tuple[str, int | None]]:
    return {(stage, None)} if case.is_whole else {(stage, rank) for rank in case.late}


def _said(verdict: Verdict) -> set[tuple[str, int | None]]:
    """Return the late ranks of *verdict* with their stages, None for all ranks."""
    said: set[tuple[str, int | None]] = set()
    for late in verdict.late:
        if late.kind != MILD:
            said.add((late.stage, late.rank))
    for group in verdict.together:
        said |= {(group.stage, rank) for rank in _ranks_of(group.spans)}
    for change in verdict.changes:
        ranks = {*change.slower_ranks, *_ranks_of(change.slower_spans)} if change.slower else {None}
        said |= {(change.stage, rank) for rank in ranks}
    return said


def _ranks_of(spans: Sequence[Span]) -> chain[int]:
    return chain.from_iterable(range(first, last + 1) for first, last in spans)


def row(case: Case, seeds: int) -> dict[str, Any]:
    """Judge *case* so often, several at a time: rank 0's merge sleeps to give way to training."""
    with ProcessPoolExecutor(MERGES_PER_CPU * (os.cpu_count() or 1)) as pool:
        found = list(pool.map(partial(outcome, case), range(1, seeds + 1)))
    seconds = [each.seconds for each in found if each.seconds is not None]
    return {
        "late": case.name,
        "ranks": case.ranks,
        "step, s": case.step_seconds,
        "runs": len(found),
        "told": len(seconds),
        "in time": sum(each <= case.due for each in seconds),
        "wrong": sum(each.wrong for each in found),
        "median, s": round(statistics.median(seconds)) if seconds else None,
        "max, s": round(max(seconds)) if seconds else None,
    }


def healthy(kind: str) -> dict[str, Any]:
    """Judge healthy jobs with this *kind* of noise, as many at a time as there are CPUs."""
    jobs = [(step, seed) for step in HEALTHY_STEPS for seed in HEALTHY_SEEDS]
    with ProcessPoolExecutor() as pool:
        found = [pool.submit(told, HEALTHY[kind], step, HEALTHY_HOURS, seed) for step, seed in jobs]
    counts = {step: 0 for step in HEALTHY_STEPS}
    for (step, _), each in zip(jobs, found, strict=True):
        counts[step] += each.result().changes
    hours = HEALTHY_HOURS * len(HEALTHY_SEEDS)
    return {"noise": kind, "hours": hours} | {f"{step} s": n for step, n in counts.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How soon is it told that many ranks are late?")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(row(case, options.seeds))
        show(rows[-1:])
    write("changes", rows)
    rows = []
    for kind in HEALTHY:
        rows.append(healthy(kind))
        show(rows[-1:])
    write("no_changes", rows)


if __name__ == "__main__":
    main()

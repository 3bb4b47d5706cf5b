"""Exact accounting of a job's steps, one by one: who waited, for whom, and in which stage.

Pure functions; exporter/skew.py does the same on means over a window, and names the late ranks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev

from exporter.skew import (
    SYNC,
    StageSeconds,
    Verdict,
    busy_seconds,
    frontier,
    judge,
    split_by_group,
    stage_baselines,
    unequal_groups,
)

# The stages of every rank in one step.
Step = Mapping[int, StageSeconds]


@dataclass(frozen=True, slots=True)
class Account:
    """What the steps of a job lost to waiting, in GPU-seconds; divided by *seconds*, in GPUs.

    *waited* by rank adds up to the whole loss, and so do *by_groups*, *caused* (by rank and stage)
    and *by_nobody* together: ranks that are faster than most leave the others nothing to mend.
    """

    seconds: float
    waited: Mapping[int, float]
    by_groups: float
    caused: Mapping[tuple[int, str], float]
    by_nobody: float

    @property
    def lost(self) -> float:
        """The whole loss, in GPU-seconds."""
        return sum(self.waited.values())


def account(steps: Sequence[Step], peer_groups: Mapping[int, str]) -> Account:
    """Account for *steps*, each of which holds the same ranks; a step lasts as its longest rank's.

    In a step every rank waits until the slowest is done: f - busy[r], where f is the frontier
    before the sync. Charged first are unequal peer groups, then the ranks above the heaviest
    group's baseline by their excess, each to the stages in which it is ahead of its own group.
    """
    waited: Counter[int] = Counter()
    caused: Counter[tuple[int, str]] = Counter()
    by_groups = by_nobody = seconds = 0.0
    for step in steps:
        one = _account(step, peer_groups)
        waited.update(one.waited)
        caused.update(one.caused)
        by_groups += one.by_groups
        by_nobody += one.by_nobody
        seconds += one.seconds
    return Account(seconds, dict(waited), by_groups, dict(caused), by_nobody)


def _account(step: Step, peer_groups: Mapping[int, str]) -> Account:
    busy = {rank: busy_seconds(stages) for rank, stages in step.items()}
    end = max(frontier(step).seconds, default=0.0)
    waited = {rank: max(end - seconds, 0.0) for rank, seconds in busy.items()}
    heaviest, unequal = unequal_groups(split_by_group(busy, peer_groups))
    lost = sum(waited.values())
    rest = max(lost - unequal, 0.0)
    shares = _shares(step, busy, heaviest, peer_groups)
    return Account(
        seconds=max(sum(stages.values()) for stages in step.values()),
        waited=waited,
        by_groups=lost - rest,
        caused={key: share * rest for key, share in shares.items()},
        by_nobody=0.0 if shares else rest,
    )


def named(steps: Sequence[Step], peer_groups: Mapping[int, str]) -> Verdict:
    """Judge the ranks by their means over *steps*.

    Where no rank ever waited, the wait was not measured, whatever zeros stand there.
    """
    ranks = steps[0].keys() if steps else ()
    means = {rank: _mean([step[rank] for step in steps]) for rank in ranks}
    if not any(mean.get(SYNC) for mean in means.values()):
        means = {rank: {s: m for s, m in mean.items() if s != SYNC} for rank, mean in means.items()}
    errors = {
        rank: pstdev(busy_seconds(step[rank]) for step in steps) / sqrt(len(steps))
        for rank in ranks
    }
    return judge(means, peer_groups, errors)


def _shares(
    step: Step, busy: Mapping[int, float], heaviest: float, peer_groups: Mapping[int, str]
) -> dict[tuple[int, str], float]:
    """Return which part of a step's loss each rank and stage causes; empty, or adding up to 1."""
    total = sum(seconds - heaviest for seconds in busy.values() if seconds > heaviest)
    shares = {}
    for group in split_by_group(busy, peer_groups):
        normal = stage_baselines([step[rank] for rank in group])
        for rank, seconds in group.items():
            if seconds > heaviest:
                for stage, part in _ahead(step[rank], normal).items():
                    shares[rank, stage] = (seconds - heaviest) / total * part
    return shares


def _ahead(stages: StageSeconds, normal: StageSeconds) -> dict[str, float]:
    """Return in which stages a rank is over the *normal*, as parts of 1."""
    over = {stage: stages.get(stage, 0.0) - normal[stage] for stage in normal}
    whole = sum(seconds for seconds in over.values() if seconds > 0)
    if whole == 0:  # Over it in all, and in no stage: baselines are not additive.
        return {max(over, key=lambda stage: over[stage]): 1.0}
    return {stage: seconds / whole for stage, seconds in over.items() if seconds > 0}


def _mean(stages: Sequence[StageSeconds]) -> dict[str, float]:
    names = {stage for each in stages for stage in each}
    return {name: fmean(each.get(name, 0.0) for each in stages) for name in names}

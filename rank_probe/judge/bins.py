"""Bins of a group's past: what is usual there, what to expect next, and how much it varies."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Final, NamedTuple

from rank_probe.judge.windows import WORK_STAGES, Window, WindowGroup
from rank_probe.wire.stages import CHECKPOINT, EVAL, SYNC

# What a job does on purpose, now and then.
DUTIES: Final = (CHECKPOINT, EVAL)
WORK: Final = tuple(at for at in range(len(WORK_STAGES)) if at not in DUTIES)
# With fewer stretches in the past, how much they vary is a guess.
FEWEST_STRETCHES, GUESSED = 6, 3.5


class Bin(NamedTuple):
    """Some steps of a group, from *begin* to *at*: *stages* of STAGES, in seconds per step.

    The last stage is the wait that all ranks of the job have in common. *own* is the sum of the
    others without DUTIES, *step* the whole step. In *steps* steps a rank was given *work*: tokens
    or samples, 0 if unknown.
    """

    begin: float
    at: float
    stages: tuple[float, ...]
    own: float
    step: float
    steps: int
    work: float

    @property
    def wait(self) -> float:
        """Return the wait that all ranks have in common."""
        return self.stages[SYNC]


# What may have grown: each has its own noise.
GROWS: Final[tuple[Callable[[Bin], float], ...]] = (attrgetter("own"), attrgetter("wait"))


def expected_of(past: Sequence[Bin], recent: Sequence[Bin], grows: Callable[[Bin], float]) -> float:
    """Return the time to expect of *recent*: the usual one, or more if it has risen for long."""
    third = len(past) // 3
    first, last = past[:third], past[-third:]
    was, has_become = median(map(grows, first)), median(map(grows, last))
    rise = (has_become - was) / (_middle(last) - _middle(first))
    risen = has_become + max(rise, 0.0) * (_middle(recent) - _middle(last))
    return max(median(map(grows, past)), risen)


def _middle(bins: Sequence[Bin]) -> float:
    return (bins[0].begin + bins[-1].at) / 2


def deviation_of(times: Sequence[float], count: int) -> float:
    """Return the usual difference between stretches of so many bins, which took these *times*.

    The stretches overlap: how the past is cut into them must not decide.
    """
    single = spread(times) / math.sqrt(count)
    apart = len(times) // count
    if apart < FEWEST_STRETCHES:
        return GUESSED * single
    stretches = [middle_mean(times[at : at + count]) for at in range(len(times) - count + 1)]
    # Neighbours differ by the root of two, unless the whole drifts.
    neighbours = zip(stretches, stretches[count:], strict=False)
    drifts = 1.4826 * median(abs(b - a) for a, b in neighbours) / math.sqrt(2)
    # Few show too little of it now and then.
    return max(single, spread(stretches), drifts) * (1 + 1 / apart)


def middle_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of *values*: few outliers do not affect it.

    It varies less than the median does.
    """
    ordered, quarter = sorted(values), len(values) // 4
    return fmean(ordered[quarter : len(ordered) - quarter])


def spread(values: Sequence[float]) -> float:
    """Return a standard deviation of *values* that few outliers do not affect."""
    middle = median(values)
    return 1.4826 * median(abs(each - middle) for each in values)


def usual_of(bins: Sequence[Bin]) -> Bin:
    """Return the median of each time in *bins*, with all their steps and their work."""
    return Bin(
        begin=bins[0].begin,
        at=bins[-1].at,
        stages=tuple(map(median, zip(*(each.stages for each in bins), strict=True))),
        own=median(each.own for each in bins),
        step=median(each.step for each in bins),
        steps=sum(each.steps for each in bins),
        work=sum(each.work for each in bins),
    )


def bin_of(window: Window, group: WindowGroup, at: float) -> Bin:
    """Return the *window* of *group* until *at* as a bin; its work is not known."""
    ranks = sum(each.ranks for each in window.groups)
    common = max(window.sync - window.waited, 0.0) / ranks / window.steps
    stages = (*group.stages, common)
    own = sum(stages[stage] for stage in WORK)
    step = window.seconds / window.steps
    return Bin(window.begin.at, at, stages, own, step, window.steps, 0.0)

"""Bins of a group's past: what is usual there, what to expect next, and how much it varies."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean, median, pstdev
from typing import Final, NamedTuple

from rank_probe.judge.windows import WORK_STAGES, Window, WindowGroup
from rank_probe.wire.stages import CHECKPOINT, EVAL, SYNC

# Stages that a job enters on purpose, now and then.
DUTIES: Final = (CHECKPOINT, EVAL)
WORK: Final = tuple(at for at in range(len(WORK_STAGES)) if at not in DUTIES)
# With fewer stretches, assume GUESSED times the deviation that independent bins would have.
FEWEST_STRETCHES, GUESSED = 6, 3.5
# Prior weight of the assumption that bins are independent, as a number of stretches.
STEADY: Final = 2
# In deviations: beyond OUTLIER a value is clipped; a smaller rise than SURE_RISE is noise.
OUTLIER, SURE_RISE = 4.0, 3.0


class Bin(NamedTuple):
    """Some steps of a group, from *begin* to *at*; times are in seconds per step.

    *stages* has a time for each of STAGES; the last is the wait that all ranks of the job share.
    *own* is the sum of the others without DUTIES, *step* the whole step. *work* counts the tokens
    or samples that a rank was given in those *steps*; 0 if unknown.
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


# Times that may grow; the noise of each is estimated separately.
GROWS: Final[tuple[Callable[[Bin], float], ...]] = (attrgetter("own"), attrgetter("wait"))


def expected_of(past: Sequence[Bin], recent: Sequence[Bin], grows: Callable[[Bin], float]) -> float:
    """Return the time expected of *recent*: the median of *past*, or its upward trend."""
    third = len(past) // 3
    first, last = past[:third], past[-third:]
    was, has_become = median(map(grows, first)), median(map(grows, last))
    usual = median(map(grows, past))
    # The median of a third varies by 1.25 / sqrt(third), the difference of two by more.
    noise = 1.25 * _deviation(list(map(grows, past))) * math.sqrt(2 / third)
    if has_become - was < SURE_RISE * noise:
        return usual
    rise = (has_become - was) / (_middle(last) - _middle(first))
    return max(usual, has_become + rise * (_middle(recent) - _middle(last)))


def _middle(bins: Sequence[Bin]) -> float:
    return (bins[0].begin + bins[-1].at) / 2


def deviation_of(times: Sequence[float], count: int) -> float:
    """Return the standard deviation between stretches of *count* bins, given the bins' *times*.

    The stretches overlap, so that the result does not depend on where the past is cut.
    """
    single = _deviation(times) / math.sqrt(count)
    apart = len(times) // count
    if apart < FEWEST_STRETCHES:
        return GUESSED * single
    stretches = [middle_mean(times[at : at + count]) for at in range(len(times) - count + 1)]
    # Neighbours differ by the deviation times the root of two, or by more if the times drift.
    rises = [b - a for a, b in zip(stretches, stretches[count:], strict=False)]
    drifts = _deviation([*rises, *(-each for each in rises)]) / math.sqrt(2)
    wanders, shown = max(_deviation(stretches), drifts), apart - 1
    # Few stretches are a poor estimate: weight them by their number against STEADY.
    likely = (STEADY * single**2 + shown * wanders**2) / (STEADY + shown)
    return max(single, math.sqrt(likely)) * (1 + 1 / apart)


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of *values* with outliers clipped; less noisy than spread()."""
    middle, most = median(values), OUTLIER * spread(values)
    return pstdev(min(max(each, middle - most), middle + most) for each in values)


def middle_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of *values*, which a few outliers do not affect.

    It varies less than the median.
    """
    ordered, quarter = sorted(values), len(values) // 4
    return fmean(ordered[quarter : len(ordered) - quarter])


def spread(values: Sequence[float]) -> float:
    """Return an estimate of the standard deviation of *values*, robust to a few outliers."""
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

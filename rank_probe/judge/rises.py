"""Rises: whether the last samples of a rank exceed its own past by more than noise explains.

A sample is a rank's time relative to its peers, over a few steps.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from rank_probe.judge.bins import FEWEST_STRETCHES, deviation_of, spread
from rank_probe.judge.changes import DEVIATIONS

# Samples that make a past.
LEAST_PAST: Final = 12
# Times the noise of single samples, while the past has too few stretches to show more.
GUESSED: Final = 2.0
# The rise must exceed that of the peers by this many spreads of theirs.
RISE_SPREADS: Final = 5.0
# With fewer peers their spread is unknown.
LEAST_PEERS: Final = 4


class GroupSample(NamedTuple):
    """The steps after *first*, from *begin* to *at*, as each rank's time over the usual one.

    *values* are in the order of the group's ranks; NaN for a rank that was slow then.
    """

    begin: float
    at: float
    first: int
    values: list[float]


class Rise(NamedTuple):
    """The last *stretch* samples exceed the *level* of all before by *more*.

    *more* must exceed *needed* to be reported. All three are in the unit of the samples.
    """

    level: float
    more: float
    needed: float
    stretch: int


def risen(position: int, samples: Sequence[GroupSample], least: Mapping[int, float]) -> Rise | None:
    """Return the rise that the last of *samples* show of the rank at *position*.

    *least* has, for each length of a stretch, the least rise as a share of the level.
    """
    values = values_of(position, samples)
    for stretch, ratio in least.items():
        if len(values) - stretch < max(LEAST_PAST, stretch):
            return None
        past, recent = values[:-stretch], sorted(values[-stretch:])
        level = median(past)
        needed = max(ratio * level, DEVIATIONS * _noise(past, samples, stretch))
        more = median(recent) - level
        # A hiccup that fills a few samples does not last.
        if more > needed and recent[stretch // 4] - level > needed / 2:
            needed = max(needed, level * _risen_alike(position, samples, stretch))
            if more > needed:
                return Rise(level, more, needed, stretch)
    return None


def _noise(past: Sequence[float], samples: Sequence[GroupSample], stretch: int) -> float:
    """Return the usual difference between the *past* and a *stretch* of samples.

    While the past is too short to show how such stretches differ, the peers' stretches are used.
    """
    of_level = math.sqrt(1 + stretch / len(past))
    if len(past) // stretch >= FEWEST_STRETCHES:
        return of_level * deviation_of(past, stretch)
    single = GUESSED * spread(past) / math.sqrt(stretch)
    apart: list[float] = []
    for position in range(len(samples[0].values)):
        apart += _apart(values_of(position, samples)[:-stretch], stretch)
    wandered = spread(apart) * median(past) if len(apart) >= FEWEST_STRETCHES else 0.0
    return of_level * max(single, wandered)


def _apart(values: Sequence[float], stretch: int) -> list[float]:
    """Return how far each stretch is from the mean of all, as a ratio; none of a single one."""
    firsts = range(len(values) % stretch, len(values), stretch)
    stretches = [median(values[at : at + stretch]) for at in firsts]
    if len(stretches) < 2:
        return []
    # Correct for the mean of few stretches, which is close to each of them.
    few, level = math.sqrt(len(stretches) / (len(stretches) - 1)), fmean(stretches)
    return [few * (each / level - 1) for each in stretches]


def _risen_alike(position: int, samples: Sequence[GroupSample], stretch: int) -> float:
    """Return the least rise, as a ratio, that stands out from those of the other ranks."""
    rises = []
    for other in range(len(samples[0].values)):
        values = values_of(other, samples)
        if other != position and len(values) > stretch:
            rises.append(median(values[-stretch:]) / median(values[:-stretch]) - 1)
    if len(rises) < LEAST_PEERS:
        return 0.0
    return median(rises) + RISE_SPREADS * spread(rises)


# ---- Samples -----------------------------------------------------------------------------------


def values_of(position: int, samples: Sequence[GroupSample]) -> list[float]:
    """Return the values of one rank, without those in which it was slow."""
    found = (each.values[position] for each in samples)
    return [value for value in found if not math.isnan(value)]


def medians(samples: Sequence[GroupSample]) -> list[float]:
    """Return each rank's median, NaN if there is none."""
    positions = range(len(samples[0].values))
    return [known_median(values_of(position, samples)) for position in positions]


def known_median(values: Sequence[float]) -> float:
    """Return the median of *values* without NaN; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def beyond_since(beyond: Sequence[float]) -> int:
    """Return the position since which the sum of *beyond* is largest (Page's CUSUM, backwards)."""
    total, best, since = 0.0, -math.inf, len(beyond) - 1
    for position in range(len(beyond) - 1, -1, -1):
        total += beyond[position]
        if total > best:
            best, since = total, position
    return since

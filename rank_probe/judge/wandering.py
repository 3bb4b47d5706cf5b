"""Measures how far ranks usually stray from their peers over as many steps as a late spell.

Noise is not independent from step to step: a neighbour's work, or a batch's kind, lasts for some
seconds or minutes. Then the variance of single steps says too little about the mean.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from rank_probe.judge.windows import Mark, Reduction

# With fewer stretches of a rank, or of it and its peers together, the past says nothing.
FEWEST_OF_RANK, FEWEST = 3, 12
# From this many on, a rank's own past counts if it varies more than that of its peers.
OWN_COUNTS: Final = 12
# One standard deviation above the median, in a normal distribution.
UPPER_QUANTILE: Final = 0.84
# Standard deviations that rule out chance: noise is not normal, and they are estimated from few.
DEVIATIONS: Final = 6.0
# The most peers that are examined.
MOST_PEERS: Final = 16


class Usual(NamedTuple):
    """A rank's usual mean excess over some steps, and how far such a mean deviates; in seconds."""

    excess: float
    deviation: float


class LateSpell(NamedTuple):
    """A *rank*'s mean excess over the *steps* since *begin*, in seconds; late since *onset*."""

    rank: int
    seconds: float
    steps: int
    begin: Mark
    onset: Mark


def strays(
    reduction: Reduction, marks: Sequence[Mark], seen: LateSpell, deviations: float = DEVIATIONS
) -> bool:
    """Whether a rank or its peers have strayed as far before as it is *seen* now, for as long.

    The past before the onset is compared. If it is too short, the rank may have been late for
    hours: then the pasts of its peers are compared, up to *seen*.
    """
    group = reduction.groups[seen.rank]
    peers = [each for each, name in reduction.groups.items() if name == group]
    looked_at = dict.fromkeys([seen.rank, *peers[:: len(peers) // MOST_PEERS + 1]])
    own, *others = [reduction.path(each, marks) for each in looked_at]
    past = usual(marks, [own, *others], seen.onset, seen.steps)
    if past is None and others:
        theirs = usual(marks, others, seen.begin, seen.steps)
        past = theirs and theirs._replace(excess=0.0)
    return past is not None and seen.seconds - past.excess < deviations * past.deviation


def usual(
    marks: Sequence[Mark], paths: Sequence[Sequence[float]], begin: Mark, steps: int
) -> Usual | None:
    """Return the usual mean excess of a rank over so many *steps*; None if the past is too short.

    *paths* are sums up to each of *marks*, the rank's first, then those of its peers. Only the past
    before *begin* counts. The deviation of all paths is the distance of an upper quantile from the
    median, because ranks are seldom faster than their peers' baseline. If the deviation of the rank
    alone is larger, it is used instead; it is a median absolute deviation, so that the rank may
    have been late for nearly half of the time. Longer stretches, which vary less, are scaled as if
    their parts were independent.
    """
    found = [list(_stretches(marks, path, begin, steps)) for path in paths]
    count = len(found[0])
    if count < FEWEST_OF_RANK or count * len(found) < FEWEST:
        return None
    apart = [list(_apart(stretches, steps)) for stretches in found]
    together = _above([each for of_rank in apart for each in of_rank])
    own = 1.4826 * median(map(abs, apart[0])) if count >= OWN_COUNTS else 0.0
    # Correct for deviations that are measured from the median of the same stretches.
    deviation = max(together, own) * math.sqrt(count / (count - 1))
    return Usual(median(mean for mean, _ in found[0]), deviation)


def _apart(stretches: Sequence[tuple[float, int]], steps: int) -> Iterator[float]:
    middle = median(mean for mean, _ in stretches)
    return ((mean - middle) * math.sqrt(of / steps) for mean, of in stretches)


def _above(apart: Sequence[float]) -> float:
    return sorted(apart)[min(math.ceil(UPPER_QUANTILE * len(apart)), len(apart)) - 1]


def _stretches(
    marks: Sequence[Mark], path: Sequence[float], begin: Mark, steps: int
) -> Iterator[tuple[float, int]]:
    """Yield the mean and the steps of each stretch, latest first."""
    end: tuple[Mark, float] | None = None
    for mark, total in zip(reversed(marks), reversed(path), strict=True):
        if mark.at > begin.at:
            continue
        if end is None:
            end = mark, total
        elif end[0].steps - mark.steps >= steps:
            of = end[0].steps - mark.steps
            yield (end[1] - total) / of, of
            end = mark, total

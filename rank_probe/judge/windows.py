"""The judge's input: windows of steps, and the ranks that stand out in them.

The reduction from step vectors to these statistics exists twice, in torch (join/windows.py, for
the join) and in plain Python (rankskew/accounting/windows.py); a test checks that the two agree.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

from rank_probe.wire.stages import STAGES, SYNC

# Steps that are enough for a verdict. If they are long, ENOUGH_SECONDS are, of at least FEW_STEPS:
# each then has to show more. In groups of few ranks more are needed: where a random rank is late in
# each step, one rank may be late in all of the first ones only once in a thousand jobs.
LEAST_STEPS, FEW_STEPS, ENOUGH_SECONDS, BY_CHANCE = 20, 6, 60.0, 1e-3
# How many of the last marks define the usual length of a step.
RECENT_MARKS: Final = 10
# The 1/3 quantile of the peers: it stays among the healthy ranks while up to two thirds are late.
BASELINE_QUANTILE: Final = 1 / 3
# A lower quantile, which late ranks do not affect: it shows how much healthy ranks differ.
LOWER_QUANTILE: Final = 1 / 12
# With fewer peers the spread is unknown.
SPREAD_PEERS: Final = 5
# How many ranks of one group, the furthest from the baseline, are examined.
MOST_STANDING: Final = 48
# Own time per step: less is only the rounding error in the difference of long sums.
LEAST_OWN_SECONDS: Final = 1e-9
# Over its group's baseline by less than this share, a rank does not stand out.
STANDS_OUT_RATIO: Final = 0.02

# Marks lie this share of their age apart, so that an hour needs about as many as a minute.
MARKS_APART: Final = 0.1
OLDEST_SECONDS: Final = 21_600.0
MOST_STEPS: Final = 120

WORK_STAGES: Final = STAGES[:SYNC]

# Columns of a rank's sums: its distance from the group's baseline, the square of that, the GPU time
# that others waited because of it, and the time of each stage of WORK_STAGES.
DISTANCE, DISTANCE_SQUARED, CAUSED, FIRST_STAGE = range(4)


def spread_of(ranks: int, quantile: Callable[[float], float]) -> float:
    """Return the standard deviation of the faster of so many *ranks*; 0 if it is unknown.

    In a normal distribution the two quantiles are 0.95 standard deviations apart, with few ranks
    less by chance. With thousands of ranks some lie far out.
    """
    if ranks < SPREAD_PEERS:
        return 0.0
    scale = 1.05 * (1 + 3 / ranks) * max(1.0, 1 + 0.1 * math.log(ranks / 64))
    return scale * (quantile(BASELINE_QUANTILE) - quantile(LOWER_QUANTILE))


class Standing(NamedTuple):
    """A rank that stands out from its peer group, or is watched; all in seconds per step.

    *excess* is its own time minus the group's baseline, *variance* its variance from step to step
    in seconds squared, *stages* the same excess by stage (of WORK_STAGES). *before* and
    *variance_before* are excess and variance in the earlier window. *caused* is the GPU time that
    the others waited for it, in seconds per step.
    """

    rank: int
    busy: float
    excess: float
    variance: float
    caused: float
    stages: tuple[float, ...]
    before: float = 0.0
    variance_before: float = 0.0


class WindowGroup(NamedTuple):
    """A peer group in a window; in seconds per step.

    *baseline* is the usual own time, *stages* the same by stage. *spread* is that of the faster
    peers, 0 if there are too few; *variance* is the step-to-step variance of a usual rank's
    distance from the baseline. *rise* and *rise_spread* are the usual change since the earlier
    window and its spread; *baseline_before* is the baseline of that window.
    """

    name: str
    ranks: int
    baseline: float
    stages: tuple[float, ...]
    spread: float
    variance: float
    standing: tuple[Standing, ...]
    rise: float = 0.0
    rise_spread: float = 0.0
    baseline_before: float = 0.0


class Window(NamedTuple):
    """The steps between two marks; *seconds* is the time of all of them, for a mean rank.

    *steps* were joined, over *elapsed* seconds of the clock. *longest* and *median* are the own
    time of the slowest and the median rank, in seconds per step. *varied* is how much ranks differ
    within a step: a usual rank's distance from the baseline, summed over all steps, in seconds.
    In GPU-seconds: *sync* is the measured wait, *waited* the part for the slowest rank of each
    step, *unequal* the part of that for heavier groups, and *caused* the rest by stage, which
    single ranks caused. *steps_before* were in the earlier window.
    """

    begin: "Mark"
    steps: int
    elapsed: float
    seconds: float
    longest: float
    median: float
    sync: float
    waited: float
    unequal: float
    varied: float
    caused: tuple[float, ...]
    groups: tuple[WindowGroup, ...]
    steps_before: int = 0


class Leader(NamedTuple):
    """The slowest rank of one step: *lead* seconds over the heaviest *baseline*, most in *stage*.

    *caused* is what the others waited because of it, in GPU-seconds; *at* is the end of the step.
    *longest* is the stage that took the ranks the most of their time.
    """

    step: int
    at: float
    rank: int
    stage: int
    lead: float
    caused: float
    baseline: float
    longest: int = 0


def stride(leaders: Sequence[Leader], before: float) -> float:
    """Return how many steps apart *leaders* are, since steps may be sampled; else as *before*."""
    if len(leaders) < 2:
        return before
    return median(later.step - each.step for each, later in pairwise(leaders))


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Sums over all steps so far: *steps* of them, until *at* seconds of the clock."""

    steps: int
    at: float
    sums: Any


class Reduction(Protocol):
    """Derives statistics from marks."""

    @property
    def groups(self) -> Mapping[int, str]:
        """Return the peer group of each rank."""

    @property
    def nodes(self) -> Mapping[int, int]:
        """Return the node of each rank."""

    def window(
        self,
        begin: Mark,
        end: Mark,
        watched: Collection[int],
        before: tuple[Mark, Mark] | None = None,
    ) -> Window:
        """Return the ranks that stand out between *begin* and *end*, and how they were *before*.

        *watched* ranks are included even if they do not stand out.
        """

    def own(self, begin: Mark, end: Mark) -> Mapping[int, float]:
        """Return each rank's own time between *begin* and *end*, in seconds per step."""

    def path(self, rank: int, marks: Sequence[Mark]) -> list[float]:
        """Return how far *rank* is from its group's baseline, in seconds up to each of *marks*."""

    def group_path(self, name: str, marks: Sequence[Mark]) -> list[float]:
        """Return the baseline of the group *name*, in seconds up to each of *marks*."""


class MarkHistory:
    """Marks of the last steps: dense among recent ones, sparse among old ones."""

    def __init__(self, peers: int = 2) -> None:
        """Begin; *peers* is the size of the smallest peer group."""
        self.marks: list[Mark] = []
        few = math.ceil(1 - math.log(BY_CHANCE) / math.log(max(peers, 2)))
        self._few_steps = max(few, FEW_STEPS)

    def add(self, mark: Mark) -> None:
        """Add *mark*, the newest; drop some of the others."""
        self.marks.append(mark)
        self._forget_oldest()
        kept = self.marks[:1]
        for each, after in zip(self.marks[1:], self.marks[2:], strict=False):
            if after.at - kept[-1].at > MARKS_APART * (mark.at - each.at):
                kept.append(each)
        self.marks = [*kept, mark] if len(self.marks) > 1 else kept

    def _forget_oldest(self) -> None:
        last = self.marks[-1]
        while (
            len(self.marks) > 2
            and last.at - self.marks[1].at > OLDEST_SECONDS
            and last.steps - self.marks[1].steps > MOST_STEPS
        ):
            del self.marks[0]

    @property
    def least_steps(self) -> int:
        """Return how many steps are enough for a verdict, by how long they usually take."""
        pairs = pairwise(self.marks[-RECENT_MARKS:])
        lengths = [(later.at - mark.at) / (later.steps - mark.steps) for mark, later in pairs]
        if not lengths:
            return LEAST_STEPS
        enough = math.ceil(ENOUGH_SECONDS / max(median(lengths), ENOUGH_SECONDS / LEAST_STEPS))
        return max(enough, self._few_steps)

    def before(self, end: Mark, seconds: float, steps: int) -> Mark | None:
        """Return the latest mark at least so many *seconds* and *steps* before *end*."""
        for mark in reversed(self.marks):
            if end.at - mark.at >= seconds and end.steps - mark.steps >= steps:
                return mark
        return None


def change_point(marks: Sequence[Mark], path: Sequence[float], middle: float) -> Mark:
    """Return the mark since which the steps add more than *middle* each to *path*.

    *path* has a sum per mark. The result is the mark after which most is added beyond *middle*
    (Page's CUSUM, backwards); never the last.
    """
    end, whole = marks[-1], path[-1]
    beyond = [
        whole - so_far - middle * (end.steps - mark.steps)
        for mark, so_far in zip(marks[:-1], path[:-1], strict=True)
    ]
    return marks[max(range(len(beyond)), key=lambda at: beyond[at])]

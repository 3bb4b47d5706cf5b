"""Changes: peer groups that take longer than they did, although none of their ranks is late.

A group's usual time is compared with its own past, in bins of some seconds. Noise that all ranks
share is not independent from step to step, so it is measured where it shows: between stretches of
the past that are as long as the one that is judged.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple

from rank_probe.judge.verdict import MOST_CHANGES, MOST_LATE, Change
from rank_probe.judge.windows import (
    WORK_STAGES,
    Mark,
    MarkHistory,
    Reduction,
    Window,
    WindowGroup,
    change_point,
)
from rank_probe.wire.stages import CHECKPOINT, EVAL, STAGES, SYNC

# The job's own past: how long it is, and how much of it there must be. The first minute is not it.
PAST_SECONDS, LEAST_PAST_SECONDS, FIRST_SECONDS = 1800.0, 180.0, 60.0
PAST_BINS, LEAST_PAST_BINS = 64, 12
MOST_BINS: Final = 512
# By how many bins: the least change that so few show, as a share of a step. A bin has twenty steps.
LEAST_CHANGES: Final = {3: 0.15, 6: 0.06, 12: 0.022}
# Standard deviations of such a stretch; with fewer stretches in the past it is a guess.
DEVIATIONS: Final = 6.0
FEWEST_STRETCHES, GUESSED = 6, 3.5
# A change is over when less than this share of it is left.
LEFT: Final = 0.4
# Work that has grown by this share of the change explains it.
MORE_WORK: Final = 0.5
# A stage that took less than this share of a step counts as absent.
STAGE_SHARE: Final = 0.01
# What a job does on purpose, now and then.
DUTIES: Final = (CHECKPOINT, EVAL)
WORK: Final = tuple(at for at in range(len(WORK_STAGES)) if at not in DUTIES)


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


@dataclass(frozen=True, slots=True)
class Slower:
    """A group that is slower since *onset*; until then its steps were as *usual*.

    *ranks* are those that are, empty if all of the group are.
    """

    onset: float
    stage: int
    usual: Bin
    more: float
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class GroupPast:
    """What is known of a group."""

    bins: deque[Bin] = field(default_factory=lambda: deque(maxlen=MOST_BINS))
    slower: Slower | None = None


class Changes:
    """Compares each group with its own past."""

    def __init__(self, reduction: Reduction, history: MarkHistory) -> None:
        self._reduction = reduction
        self._history = history
        self._groups: dict[str, GroupPast] = {}
        self._began: float | None = None
        self._until = -math.inf
        self._steps = 0
        self._work = 0.0

    def named(self, window: Window, end: Mark, work: float = 0.0) -> tuple[Change, ...]:
        """Return the groups that are slower than they were, given the shortest *window*.

        *work* counts the tokens, or else the samples, of a rank since the job began.
        """
        if self._began is None:
            self._began = window.begin.at
        if window.begin.at >= self._until:
            self._until = end.at
            steps, self._steps = end.steps - self._steps, end.steps
            done, self._work = work - self._work, work
            if window.begin.at >= self._began + FIRST_SECONDS:
                for group in window.groups:
                    self._add(group, window, end, steps, done)
        told = [
            self._change(name, past, window, end)
            for name, past in sorted(self._groups.items())
            if past.slower is not None
        ]
        return tuple(told[:MOST_CHANGES])

    def _add(self, group: WindowGroup, window: Window, end: Mark, steps: int, work: float) -> None:
        ranks = sum(each.ranks for each in window.groups)
        common = max(window.sync - window.waited, 0.0) / ranks / window.steps
        stages = (*group.stages, common)
        own = sum(stages[at] for at in WORK)
        past = self._groups.setdefault(group.name, GroupPast())
        step = window.seconds / window.steps
        past.bins.append(Bin(window.begin.at, end.at, stages, own, step, steps, work))
        while len(past.bins) > PAST_BINS and end.at - past.bins[0].at > PAST_SECONDS:
            past.bins.popleft()
        if past.slower is None:
            if (found := _slower(past.bins)) is not None:
                found = replace(found, onset=self._onset(group.name, found))
                past.slower = replace(found, ranks=self._ranks(group.name, found, end))
        elif _is_over(past.slower, past.bins):
            past.slower = None
            past.bins.clear()

    def _onset(self, name: str, found: Slower) -> float:
        """Return when it began, more precisely than a bin, if it shows in the ranks' own time."""
        if found.stage == SYNC:
            return found.onset
        bins = self._groups[name].bins
        first = next(i for i, each in enumerate(bins) if each.begin == found.onset)
        begin = bins[max(first - 1, 0)].begin
        marks = [each for each in self._history.marks if each.at >= begin]
        middle = sum(found.usual.stages[:SYNC]) + found.more / 2
        return change_point(marks, self._reduction.group_path(name, marks), middle).at

    def _ranks(self, name: str, found: Slower, end: Mark) -> tuple[int, ...]:
        """Return the ranks of the group whose own time has grown, if they are not all."""
        marks = self._history.marks
        first = next((each for each in marks if each.at >= found.usual.begin), end)
        onset = next((each for each in marks if each.at >= found.onset), end)
        if found.stage == SYNC or not first.steps < onset.steps < end.steps:
            return ()
        own = [rank for rank, group in self._reduction.groups.items() if group == name]
        window = self._reduction.window(onset, end, own, (first, onset))
        group = next(group for group in window.groups if group.name == name)
        grown = group.baseline - group.baseline_before
        more = {each.rank: each.excess - each.before + grown for each in group.standing}
        most = max(more.values(), default=0.0)
        ranks = tuple(sorted(rank for rank, each in more.items() if each > most / 2))
        return ranks if len(ranks) < len(own) else ()

    def _change(self, name: str, past: GroupPast, window: Window, end: Mark) -> Change:
        slower = past.slower
        assert slower is not None
        since = [each for each in past.bins if each.begin >= slower.onset] or [past.bins[-1]]
        now, usual, stage = _usual(since), slower.usual, slower.stage
        was = usual.stages[stage]
        is_new = was <= STAGE_SHARE * usual.step
        ranks = sum(group.ranks for group in window.groups)
        return Change(
            peer_group=name,
            stage=STAGES[stage],
            ratio=now.step / usual.step if is_new else now.stages[stage] / was,
            since_seconds=end.at - slower.onset,
            step_ratio=now.step / usual.step,
            gpus=ranks * max(1 - usual.step / now.step, 0.0),
            slower=len(slower.ranks),
            slower_ranks=slower.ranks[:MOST_LATE],
        )


def _slower(bins: Sequence[Bin]) -> Slower | None:
    """Return the change that the last of *bins* show, the largest within the shortest time."""
    for count, least in LEAST_CHANGES.items():
        past, recent = list(bins)[:-count], list(bins)[-count:]
        if len(past) < LEAST_PAST_BINS or past[-1].at - past[0].begin < LEAST_PAST_SECONDS:
            return None
        step = sum(median(map(grows, past)) for grows in GROWS)
        for grows in GROWS:
            times, expected = sorted(map(grows, recent)), _expected(past, recent, grows)
            longer = max(least * step, DEVIATIONS * deviation(list(map(grows, past)), count))
            now = median(times)
            # A few bins that a hiccup filled are no lasting change.
            if now - expected < longer or times[count // 4] - expected < longer / 2:
                continue
            found = _since(list(bins), grows, (now + expected) / 2, count)
            if found is not None:
                return found
    return None


def _since(
    bins: Sequence[Bin], grows: Callable[[Bin], float], middle: float, count: int
) -> Slower | None:
    """Return the change from where the times exceed *middle* on; None if there is more work."""
    beyond = [0.0]
    for each in reversed(bins):
        beyond.append(beyond[-1] + grows(each) - middle)
    split = len(bins) - max(range(len(beyond)), key=lambda at: beyond[at])
    before, after = bins[max(0, split - PAST_BINS) : split], bins[split:]
    if len(after) < min(count, 3) or not before:
        return None
    usual, now = _usual(before), _usual(after)
    longer, more_work = now.step / usual.step - 1, now.work / now.steps - usual.work / usual.steps
    if more_work * usual.steps > MORE_WORK * longer * usual.work > 0:
        return None
    more = [a - b for a, b in zip(now.stages, usual.stages, strict=True)]
    stage = SYNC if grows is GROWS[-1] else max(WORK, key=lambda at: more[at])
    return Slower(after[0].begin, stage, usual, grows(now) - grows(usual))


def _is_over(slower: Slower, bins: Sequence[Bin]) -> bool:
    grows = GROWS[slower.stage == SYNC]
    recent = list(bins)[-min(LEAST_CHANGES) :]
    return median(map(grows, recent)) < grows(slower.usual) + LEFT * slower.more


def _expected(past: Sequence[Bin], recent: Sequence[Bin], grows: Callable[[Bin], float]) -> float:
    """Return the time to expect of *recent*: the usual one, or more if it has risen for long."""
    third = len(past) // 3
    first, last = past[:third], past[-third:]
    was, has_become = median(map(grows, first)), median(map(grows, last))
    rise = (has_become - was) / (_middle(last) - _middle(first))
    risen = has_become + max(rise, 0.0) * (_middle(recent) - _middle(last))
    return max(median(map(grows, past)), risen)


def _middle(bins: Sequence[Bin]) -> float:
    return (bins[0].begin + bins[-1].at) / 2


def deviation(times: Sequence[float], count: int) -> float:
    """Return the usual difference between stretches of so many bins, which took these *times*."""
    single = spread(times) / math.sqrt(count)
    stretches = [
        median(times[first : first + count])
        for first in range(len(times) % count, len(times), count)
    ]
    if len(stretches) < FEWEST_STRETCHES:
        return GUESSED * single
    # Neighbours differ by the root of two, unless the whole drifts.
    apart = [abs(b - a) for a, b in pairwise(stretches)]
    return max(single, spread(stretches), 1.4826 * median(apart) / math.sqrt(2))


def spread(values: Sequence[float]) -> float:
    middle = median(values)
    return 1.4826 * median(abs(each - middle) for each in values)


def _usual(bins: Sequence[Bin]) -> Bin:
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

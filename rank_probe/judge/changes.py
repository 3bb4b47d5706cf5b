"""Changes: peer groups that take longer than they did, although none of their ranks is late.

A group's usual time is compared with its own past, in bins of some seconds. Noise that all ranks
share is correlated from step to step. It is therefore measured between stretches of the past that
are as long as the one being judged.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from rank_probe.judge.bins import (
    GROWS,
    WORK,
    Bin,
    bin_of,
    deviation_of,
    expected_of,
    middle_mean,
    usual_of,
)
from rank_probe.judge.common import Facts, in_common, spans_of
from rank_probe.judge.evidence import errors
from rank_probe.judge.verdict import MOST_CHANGES, MOST_LATE, Change
from rank_probe.judge.windows import (
    LEAST_STEPS,
    Mark,
    MarkHistory,
    Reduction,
    Window,
    WindowGroup,
    change_point,
)
from rank_probe.wire.stages import STAGES, SYNC

# A jump: some ranks are slower by this share of a step, for at least so many seconds and steps.
TOGETHER_RATIO, TOGETHER_SECONDS, TOGETHER_STEPS = 0.08, 30.0, 5
# In the last LAST_SECONDS at least this share of the slowdown must remain.
LAST_SECONDS, STILL = 10.0, 0.75
# Share of the jump by which the group's baseline must grow; it lags if hardly two thirds jumped.
GROUP_SHARE: Final = 0.25
# How close each rank's growth must be to 0 or to the usual growth, as a share of the latter.
CLOSE: Final = 0.25
# The job's own past: its length, and the least that is needed; its first minute does not count.
PAST_SECONDS, LEAST_PAST_SECONDS, FIRST_SECONDS = 1800.0, 180.0, 60.0
PAST_BINS, LEAST_PAST_BINS = 96, 12
MOST_BINS: Final = 512
# The least change, as a share of a step, and how many bins show it. A bin has twenty steps.
LEAST_LARGE, LARGE_BINS = 0.12, 3
LEAST_SMALL, SMALL_BINS, MOST_SMALL_BINS = 0.02, 4, 12
# A small change that has lasted for less is a hiccup, however many bins it fills.
LASTING_SECONDS: Final = 120.0
# Standard deviations of a stretch that a change must exceed.
DEVIATIONS: Final = 6.0
# A change is over when less than this share of it is left.
LEFT: Final = 0.4
# Work that has grown by this share of the change explains it.
MORE_WORK: Final = 0.5
# A stage that took less than this share of a step counts as absent.
STAGE_SHARE: Final = 0.01


class Jump(NamedTuple):
    """Some *ranks* of a group are slower since *onset*; it was *usual* before and is *now*."""

    onset: Mark
    ranks: tuple[int, ...]
    usual: Bin
    now: Bin


def jumped(
    reduction: Reduction, marks: Sequence[Mark], name: str, past: Sequence[Bin]
) -> Jump | None:
    """Return the jump in the group *name* up to the last of *marks*, given its *past*."""
    step = usual_of(past).step
    since = [each for each in marks if each.at >= past[0].begin]
    onset = _onset(reduction, since, name, past)
    if onset is None:
        return None
    window, group = _compared(reduction, name, since[0], onset, since[-1])
    now = bin_of(window, group, marks[-1].at)
    if now.own - expected_of(past, [now], GROWS[0]) < GROUP_SHARE * TOGETHER_RATIO * step:
        return None
    ranks = _apart(group, TOGETHER_RATIO * step, window.steps)
    before = [each for each in past if each.at <= onset.at]
    return Jump(onset, ranks, usual_of(before or past), now) if ranks else None


def _onset(
    reduction: Reduction, marks: Sequence[Mark], name: str, past: Sequence[Bin]
) -> Mark | None:
    """Return the mark where the slowdown began, if it has lasted long enough and still goes on."""
    path, end = reduction.group_path(name, marks), marks[-1]
    usual = sum(usual_of(past).stages[:SYNC])

    def longer(at: int) -> float:
        """Return by how much steps have been longer since the mark number *at*, in seconds."""
        return (path[-1] - path[at]) / max(end.steps - marks[at].steps, 1) - usual

    begin = next(at for at, mark in enumerate(marks) if mark.at >= past[-1].at)
    if longer(begin) < GROUP_SHARE * TOGETHER_RATIO * usual:
        return None
    onset = change_point(marks, path, usual + longer(begin) / 2)
    if end.at - onset.at < TOGETHER_SECONDS or end.steps - onset.steps < TOGETHER_STEPS:
        return None
    last = max(at for at, mark in enumerate(marks) if end.at - mark.at >= LAST_SECONDS)
    is_now = longer(last) > STILL * longer(marks.index(onset))
    return onset if is_now and onset.steps - marks[0].steps >= LEAST_STEPS else None


def _apart(group: WindowGroup, least: float, steps: int) -> tuple[int, ...]:
    """Return the ranks that have jumped by *least* seconds; all ranks of *group* must be watched.

    Empty unless every rank has clearly either jumped or stayed where it was.
    """
    more = _grown_by(group)
    usual = median(more.values())
    error = max(math.sqrt(max(each.variance, 0.0) / steps) for each in group.standing)
    if usual < max(least, errors(steps) * error):
        return ()
    slower = {rank for rank, each in more.items() if each > usual / 2}
    is_clear = all(min(abs(each), abs(each - usual)) < CLOSE * usual for each in more.values())
    return tuple(sorted(slower)) if is_clear and len(slower) < len(more) else ()


def _compared(
    reduction: Reduction, name: str, first: Mark, onset: Mark, end: Mark
) -> tuple[Window, WindowGroup]:
    """Return the window since *onset* and the group *name* in it, of which all ranks are watched.

    The earlier window is from *first* to *onset*.
    """
    own = [rank for rank, group in reduction.groups.items() if group == name]
    window = reduction.window(onset, end, own, (first, onset))
    return window, next(each for each in window.groups if each.name == name)


def _grown_by(group: WindowGroup) -> dict[int, float]:
    """Return by how much the own time of each watched rank has grown since the earlier window."""
    grown = group.baseline - group.baseline_before
    return {each.rank: each.excess - each.before + grown for each in group.standing}


@dataclass(frozen=True, slots=True)
class Slower:
    """A group that is slower since *onset*; until then its steps were as *usual*.

    *ranks* are the slower ranks, empty if the whole group is slower. *now* describes the group
    when the change was noticed.
    """

    onset: float
    stage: int
    usual: Bin
    more: float
    now: Bin
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class GroupPast:
    """What is known of a group."""

    bins: deque[Bin] = field(default_factory=lambda: deque(maxlen=MOST_BINS))
    slower: Slower | None = None


class Changes:
    """Compares each group with its own past."""

    def __init__(
        self, reduction: Reduction, history: MarkHistory, facts: Facts | None = None
    ) -> None:
        self._reduction = reduction
        self._history = history
        self._facts = {} if facts is None else facts
        self._groups: dict[str, GroupPast] = {}
        self._began: float | None = None
        self._until = -math.inf
        self._steps = 0
        self._work = 0.0

    def named(self, window: Window, end: Mark, step: int, work: float) -> tuple[Change, ...]:
        """Return the groups that are slower than they were, given the shortest *window*.

        *work* counts a rank's tokens, or else its samples, since the job began. *step* counts its
        steps, including those that are not compared.
        """
        if self._began is None:
            self._began = window.begin.at
        if window.begin.at >= self._until:
            self._until = end.at
            steps, self._steps = step - self._steps, step
            done, self._work = work - self._work, work
            if window.begin.at >= self._began + FIRST_SECONDS:
                for group in window.groups:
                    self._add(group, window, end, steps, done)
        for name, past in self._groups.items():
            if past.slower is None:
                past.slower = self._jumped(name, past.bins, end)
        told = [
            self._change(name, past, window, end)
            for name, past in sorted(self._groups.items())
            if past.slower is not None
        ]
        return tuple(told[:MOST_CHANGES])

    def _add(self, group: WindowGroup, window: Window, end: Mark, steps: int, work: float) -> None:
        past = self._groups.setdefault(group.name, GroupPast())
        past.bins.append(bin_of(window, group, end.at)._replace(steps=steps, work=work))
        while len(past.bins) > PAST_BINS and end.at - past.bins[0].at > PAST_SECONDS:
            past.bins.popleft()
        if past.slower is None:
            if (found := _slower(past.bins)) is not None:
                found = replace(found, onset=self._onset(group.name, found))
                past.slower = replace(found, ranks=self._ranks(group.name, found, end))
        elif _is_over(past.slower, past.bins):
            past.slower = None
            past.bins.clear()

    def _jumped(self, name: str, bins: Sequence[Bin], end: Mark) -> Slower | None:
        """Return a simultaneous change of many ranks, which shows sooner than one of all."""
        begin = self._history.before(end, TOGETHER_SECONDS, TOGETHER_STEPS)
        past = [] if begin is None else [each for each in bins if each.at <= begin.at]
        if begin is None or not _is_enough(past):
            return None
        found = jumped(self._reduction, self._history.marks, name, past)
        since = [each for each in bins if found is not None and each.begin >= found.onset.at]
        if found is None or (since and _has_more_work(found.usual, usual_of(since))):
            return None
        stage, grown = _stage(found.usual, found.now), found.now.own - found.usual.own
        return Slower(found.onset.at, stage, found.usual, grown, found.now, found.ranks)

    def _onset(self, name: str, found: Slower) -> float:
        """Return the onset, more precisely than a bin if it shows in the ranks' own time."""
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
        more = _grown_by(_compared(self._reduction, name, first, onset, end)[1])
        most = max(more.values(), default=0.0)
        ranks = tuple(sorted(rank for rank, each in more.items() if each > most / 2))
        return ranks if len(ranks) < len(more) else ()

    def _change(self, name: str, past: GroupPast, window: Window, end: Mark) -> Change:
        slower = past.slower
        assert slower is not None
        since = [each for each in past.bins if each.begin >= slower.onset] or [slower.now]
        now, usual, stage = usual_of(since), slower.usual, slower.stage
        was, grows = usual.stages[stage], GROWS[stage == SYNC]
        is_new = was <= STAGE_SHARE * usual.step
        # Exclude the time that a late rank costs meanwhile.
        step = min(now.step, usual.step + max(grows(now) - grows(usual), 0.0))
        ranks = sum(group.ranks for group in window.groups)
        theirs = {rank for rank, group in self._reduction.groups.items() if group == name}
        return Change(
            peer_group=name,
            stage=STAGES[stage],
            ratio=step / usual.step if is_new else now.stages[stage] / was,
            since_seconds=end.at - slower.onset,
            step_ratio=step / usual.step,
            gpus=ranks * max(1 - usual.step / step, 0.0),
            slower=len(slower.ranks),
            slower_ranks=slower.ranks[:MOST_LATE],
            slower_spans=spans_of(slower.ranks),
            peers=len(theirs),
            in_common=in_common(slower.ranks, theirs - set(slower.ranks), self._facts),
        )


def _slower(bins: Sequence[Bin]) -> Slower | None:
    """Return the change in the last of *bins*, looking for large changes in few bins first."""
    lasting = sum(each.begin > bins[-1].at - LASTING_SECONDS for each in bins) + 1
    fewest = max(SMALL_BINS, lasting)
    # Try several lengths: a missed change must not become the past, and shows best as a whole.
    small = [(count, LEAST_SMALL) for count in range(fewest, max(MOST_SMALL_BINS, fewest) + 1)]
    for count, least in [(LARGE_BINS, LEAST_LARGE), *small]:
        past, recent = list(bins)[:-count], list(bins)[-count:]
        if not _is_enough(past):
            return None
        for grows in GROWS:
            found = _grown(past, recent, grows, least)
            if found is not None:
                return found
    return None


def _grown(
    past: Sequence[Bin], recent: Sequence[Bin], grows: Callable[[Bin], float], least: float
) -> Slower | None:
    """Return the change from *past* to *recent* if it is *least* of a step and beyond the noise."""
    count, before, times = len(recent), list(map(grows, past)), sorted(map(grows, recent))
    now, longer = middle_mean(times), least * sum(median(map(each, past)) for each in GROWS)
    if now - median(before) < longer:  # Nearly always.
        return None
    usual = expected_of(past, recent, grows)
    longer = max(longer, DEVIATIONS * deviation_of(before, count))
    # A few bins that a hiccup filled are no lasting change.
    if now - usual < longer or times[count // 4] - usual < longer / 2:
        return None
    return _since([*past, *recent], grows, (now + usual) / 2, count)


def _since(
    bins: Sequence[Bin], grows: Callable[[Bin], float], middle: float, count: int
) -> Slower | None:
    """Return the change since the times exceed *middle*; None if more work explains it."""
    beyond = [0.0]
    for each in reversed(bins):
        beyond.append(beyond[-1] + grows(each) - middle)
    split = len(bins) - max(range(len(beyond)), key=lambda at: beyond[at])
    before, after = bins[max(0, split - PAST_BINS) : split], bins[split:]
    if len(after) < min(count, 3) or not before:
        return None
    usual, now = usual_of(before), usual_of(after)
    if _has_more_work(usual, now):
        return None
    stage = SYNC if grows is GROWS[-1] else _stage(usual, now)
    return Slower(after[0].begin, stage, usual, grows(now) - grows(usual), now)


def _stage(usual: Bin, now: Bin) -> int:
    """Return the stage of work that has grown most from *usual* to *now*."""
    return max(WORK, key=lambda at: now.stages[at] - usual.stages[at])


def _is_enough(past: Sequence[Bin]) -> bool:
    """Whether there is enough of a *past* to compare with."""
    return len(past) >= LEAST_PAST_BINS and past[-1].at - past[0].begin >= LEAST_PAST_SECONDS


def _has_more_work(usual: Bin, now: Bin) -> bool:
    """Whether *now* takes longer than *usual* because there is more to do."""
    longer, more_work = now.step / usual.step - 1, now.work / now.steps - usual.work / usual.steps
    return more_work * usual.steps > MORE_WORK * longer * usual.work > 0


def _is_over(slower: Slower, bins: Sequence[Bin]) -> bool:
    grows = GROWS[slower.stage == SYNC]
    recent = [each for each in bins if each.begin >= slower.onset][-LARGE_BINS:]
    return (
        len(recent) == LARGE_BINS
        and median(map(grows, recent)) < grows(slower.usual) + LEFT * slower.more
    )

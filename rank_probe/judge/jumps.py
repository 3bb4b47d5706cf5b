"""Jumps: many ranks of a group that become slower at once, while the others stay as they were.

So many that their pace is the group's usual one: a quantile of the group follows them. The distance
between those that jumped and the others is free of the noise that all of them share, so less time
is needed than for a change of the whole group.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from rank_probe.judge.bins import GROWS, Bin, bin_of, expected_of, usual_of
from rank_probe.judge.evidence import errors
from rank_probe.judge.windows import LEAST_STEPS, Mark, Reduction, WindowGroup, change_point
from rank_probe.wire.stages import SYNC

# By how much of a step they must be slower, for so long: a hiccup is no jump.
TOGETHER_RATIO, TOGETHER_SECONDS, TOGETHER_STEPS = 0.08, 30.0, 5
# In the last seconds they must still be slower by this share of it.
LAST_SECONDS, STILL = 10.0, 0.75
# The group's usual time grows by less while hardly two thirds of it are slower.
GROUP_SHARE: Final = 0.25
# How close to none, or to the usual growth of those that jumped, each rank's own must be.
CLOSE: Final = 0.25


class Jump(NamedTuple):
    """Since *onset* these *ranks*, not all of a group, are slower; it was *usual* and is *now*."""

    onset: Mark
    ranks: tuple[int, ...]
    usual: Bin
    now: Bin


def jumped(
    reduction: Reduction, marks: Sequence[Mark], name: str, past: Sequence[Bin]
) -> Jump | None:
    """Return the jump in the group *name* up to the last of *marks*, given its *past*."""
    step = usual_of(past).step
    onset = _onset(reduction, [each for each in marks if each.at >= past[0].begin], name, past)
    if onset is None:
        return None
    first = next(each for each in marks if each.at >= past[0].begin)
    own = [rank for rank, group in reduction.groups.items() if group == name]
    window = reduction.window(onset, marks[-1], own, (first, onset))
    group = next(each for each in window.groups if each.name == name)
    now = bin_of(window, group, marks[-1].at)
    if now.own - expected_of(past, [now], GROWS[0]) < GROUP_SHARE * TOGETHER_RATIO * step:
        return None
    ranks = _apart(group, TOGETHER_RATIO * step, window.steps)
    before = [each for each in past if each.at <= onset.at]
    return Jump(onset, ranks, usual_of(before or past), now) if ranks else None


def _onset(
    reduction: Reduction, marks: Sequence[Mark], name: str, past: Sequence[Bin]
) -> Mark | None:
    """Return since which of *marks* the group is slower, for long enough and still now."""
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
    """Return the ranks of *group*, all of whom are watched, that have jumped by *least* seconds.

    Empty unless the others have stayed where they were, and each is clearly one or the other.
    """
    grown = group.baseline - group.baseline_before
    more = {each.rank: each.excess - each.before + grown for each in group.standing}
    usual = median(more.values())
    error = max(math.sqrt(max(each.variance, 0.0) / steps) for each in group.standing)
    if usual < max(least, errors(steps) * error):
        return ()
    slower = {rank for rank, each in more.items() if each > usual / 2}
    is_clear = all(min(abs(each), abs(each - usual)) < CLOSE * usual for each in more.values())
    return tuple(sorted(slower)) if is_clear and len(slower) < len(more) else ()

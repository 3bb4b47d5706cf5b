"""Feeds a trace to the judge, as rank 0's join does while a job runs.

The judge needs past steps to compare with, and is silent until it has them. A trace is complete: if
it is too short for that, it is split where its steps differ most, to find large differences.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median, median_high
from typing import Final, NamedTuple

from rank_probe.judge.bins import WORK, spread
from rank_probe.judge.changes import STAGE_SHARE
from rank_probe.judge.evidence import (
    SPREADS,
    WindowEvidence,
    by_stage,
    errors,
    evidence_on,
    furthest,
    seen_in,
)
from rank_probe.judge.judge import WARMUP_STEPS, Judge, why_not
from rank_probe.judge.own_past import FAR_APART, Lasted
from rank_probe.judge.verdict import (
    LOST_KINDS,
    NO_BUSY_TIME,
    NO_PEERS,
    NO_SYNC,
    PERSISTENT,
    UNSYNCED,
    WARMING_UP,
    Change,
    Late,
    Verdict,
)
from rank_probe.judge.windows import (
    LEAST_STEPS,
    WORK_STAGES,
    Leader,
    Mark,
    Reduction,
    Window,
    WindowGroup,
)
from rankskew.accounting.windows import PlainReduction
from rankskew.replay.traces import Run, TraceStretch, TraceTimeline, has_sync

# As often as the join calls the judge, in jobs of up to 256 ranks.
EVERY_SECONDS: Final = 2.0
# Without waits a rank is compared with its own past, step by step unless there are too many steps.
UNSYNCED_VERDICTS: Final = 10_000
# A verdict takes some 30 µs per rank, so long runs and large jobs get fewer verdicts.
MOST_VERDICTS_ON_RANKS: Final = 300_000
# Times in files are rounded; this keeps the ends of two steps apart.
TICK_SECONDS: Final = 1e-6

# The judge is silent before JUDGED_STEPS, and this module in traces below SHORTEST.
JUDGED_STEPS: Final = WARMUP_STEPS + LEAST_STEPS
SHORTEST: Final = 14
# The judge has compared a group with its past after so many steps, if they last long enough.
COMPARED_STEPS: Final = 320
# The judge's reasons for too few steps, and for steps without measured waits.
SILENT: Final = (WARMING_UP, NO_SYNC)
# With fewer steps, the report says how many there were.
SURE_STEPS: Final = 60
# Steps that are needed on each side of a change.
LEAST_SIDE: Final = 5
# Of a step: the least change, and the least excess of a rank that others wait for.
LEAST_CHANGE, LEAST_EXCESS = 0.06, 0.15
# Otherwise the times drift: a change must come by this share at once, within so many steps, and the
# times must be nearer to the two medians than to a line, by the last share.
AT_ONCE, AT_ONCE_STEPS, NEARER = 0.6, 8, 0.8


@dataclass(slots=True)
class JudgedStretch:
    """A stretch and the verdicts on it, each with its time, in scaled seconds of the run.

    *warm* is when the judge started; whatever is late then counts as late since the stretch began.
    *ended* are the ranks that were slower than before for a while, where no wait was measured.
    """

    stretch: TraceStretch
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    warm: float = 0.0
    ended: Sequence[Lasted] = ()


def judge(run: Run, line: TraceTimeline, stretches: Sequence[TraceStretch]) -> list[JudgedStretch]:
    """Judge each of *stretches* separately: with other ranks it is another job."""
    longest = max((len(stretch.steps) for stretch in stretches), default=0)
    is_short = longest < JUDGED_STEPS
    return [_judged_stretch(run, line, stretch, is_short=is_short) for stretch in stretches]


def _judged_stretch(
    run: Run, line: TraceTimeline, stretch: TraceStretch, *, is_short: bool
) -> JudgedStretch:
    found = JudgedStretch(stretch)
    ranks, steps = stretch.ranks, stretch.steps
    often = EVERY_SECONDS if has_sync(run) else line.seconds / UNSYNCED_VERDICTS
    every = max(min(often, EVERY_SECONDS), line.seconds * len(ranks) / MOST_VERDICTS_ON_RANKS)
    names = sorted({run.nodes[rank] for rank in ranks})
    nodes = {rank: names.index(run.nodes[rank]) for rank in ranks if run.nodes[rank]}
    reduction = PlainReduction({rank: run.peer_groups[rank] for rank in ranks}, nodes)
    judge = Judge(reduction)
    leaders: list[Leader] = []
    marks = [reduction.mark(stretch.begin)]
    # The usual distance between sampled steps: 1 if all were recorded.
    stride = median_high([after - before for before, after in pairwise(steps)] or [1])
    number, at, due = 0, 0.0, 0.0
    for done, step in enumerate(steps, 1):
        at = max(at + TICK_SECONDS, *(line.ends[rank][step] for rank in ranks))
        # Count in sampled steps: for the judge, they are consecutive.
        number = max(number + 1, (step - steps[0]) // stride)
        stages = {
            rank: {stage: seconds * line.scale for stage, seconds in run.steps[step][rank].items()}
            for rank in ranks
        }
        leaders.append(reduction.add(number, stages, at))
        if len(steps) < COMPARED_STEPS:
            marks.append(reduction.mark(at))
        # The judge starts when the warm-up ends, at the latest.
        if at >= due or done in (WARMUP_STEPS, len(steps)):
            found.verdicts.append((at, judge.judge(reduction.mark(at), leaders, step=number)))
            leaders, due = [], at + every
    if not found.verdicts:
        return found
    found.ended, found.warm = judge.ended, judge.began or 0.0
    at, said = found.verdicts[-1]
    if is_short and said.reason in SILENT:
        found.verdicts, found.warm = [(at, said)], stretch.begin
    if is_short or len(steps) >= JUDGED_STEPS:
        found.verdicts[-1] = at, _completed(said, reduction, marks)
    return found


# ---- Traces too short for the judge --------------------------------------------------------------


class Split(NamedTuple):
    """Times that are longer from position *at* on: by *more* than the median *before*."""

    at: int
    before: float
    more: float
    needed: float


def confidence(steps: int) -> str | None:
    """Return in words how little so many *steps* are; None if they are enough."""
    if not SHORTEST <= steps < SURE_STEPS:
        return None
    return f"seen in {steps} steps only; surer after {SURE_STEPS}"


def longer(times: Sequence[float], least: float) -> Split | None:
    """Return where *times*, SHORTEST at least, become longer by *least*; None if they do not.

    The split is the one that leaves the smallest differences from the medians of both sides. The
    difference between these must be larger than noise explains, and come at once.
    """
    splits = range(LEAST_SIDE, len(times) - LEAST_SIDE + 1)
    at = min(splits, key=lambda at: _differences(times[:at]) + _differences(times[at:]))
    before, after = sorted(times[:at]), sorted(times[at:])
    more = median(after) - median(before)
    apart = [abs(each - median(side)) for side in (before, after) for each in side]
    few = min(len(before), len(after))
    error = 1.4826 * median(apart) * math.sqrt(1 / len(before) + 1 / len(after))
    needed = max(least, errors(few) * error)
    width = min(few, AT_ONCE_STEPS)
    at_once = median(times[at : at + width]) - median(times[at - width : at])
    overlap = after[len(after) // 4] <= before[-1 - len(before) // 4]
    drifts = at_once < AT_ONCE * more or sum(apart) > NEARER * _off_line(times)
    if more <= needed or overlap or drifts:
        return None
    return Split(at, median(before), more, needed)


def _differences(times: Sequence[float]) -> float:
    middle = median(times)
    return sum(abs(each - middle) for each in times)


def _off_line(times: Sequence[float]) -> float:
    """Return the sum of the differences from the line from the first third to the last."""
    third = len(times) // 3
    slope = (median(times[-third:]) - median(times[:third])) / (len(times) - third)
    return _differences([each - slope * step for step, each in enumerate(times)])


def _completed(said: Verdict, reduction: Reduction, marks: Sequence[Mark]) -> Verdict:
    """Return the judge's last verdict, *said*, plus what it cannot find in so few steps.

    *marks* are those at the end of each step, the first one at the begin of the run.
    """
    steps = len(marks) - 1
    if not SHORTEST <= steps < COMPARED_STEPS:
        return said
    if steps < JUDGED_STEPS and said.reason in SILENT:
        said = _judged(said, reduction, marks)
    if said.reason == NO_BUSY_TIME:
        return said
    known = {change.peer_group for change in said.changes}
    changes = [each for each in _changes(reduction, marks) if each.peer_group not in known]
    return replace(said, changes=(*said.changes, *changes))


def _judged(said: Verdict, reduction: Reduction, marks: Sequence[Mark]) -> Verdict:
    """Return a verdict on steps that are too few for the judge."""
    # The first ones compile kernels and fill caches.
    warm = marks[min(WARMUP_STEPS, len(marks) // 5) :]
    window = reduction.window(warm[0], warm[-1], reduction.groups)
    reason = why_not(window)
    if reason in (NO_PEERS, NO_BUSY_TIME):
        return replace(said, reason=reason)
    late = sorted(
        _late(reduction, marks, window, is_synced=reason is None),
        key=lambda each: (-each.gpus_lost, -each.ratio, each.rank),
    )
    lost = dict.fromkeys(LOST_KINDS, 0.0) | {"persistent": sum(each.gpus_lost for each in late)}
    return replace(
        said,
        reason=reason,
        step_seconds=window.seconds / window.steps,
        gpus_lost=lost if reason is None else {},
        late=tuple(late),
    )


def _late(
    reduction: Reduction, marks: Sequence[Mark], window: Window, *, is_synced: bool
) -> Iterator[Late]:
    for seen in seen_in([window]):
        rank, end = seen.standing.rank, marks[-1]
        beside = _beside(reduction, marks, seen)
        split = longer(beside, LEAST_EXCESS)
        if split is not None:
            begin, ratio, score = marks[split.at], split.more, split.more / split.needed
            after = reduction.window(begin, end, reduction.groups)
            seen = evidence_on(rank, after)
        else:
            begin, ratio = marks[0], median(beside)
            score = ratio / _explained(beside, seen, is_synced=is_synced)
        if score <= 1 or not (seen.paces if is_synced else seen.is_alone):
            continue
        gpus = seen.standing.caused * seen.window.steps / seen.window.seconds
        yield Late(
            rank=rank,
            peer_group=seen.group.name,
            stage=furthest(seen.standing.stages),
            kind=PERSISTENT if is_synced else UNSYNCED,
            ratio=ratio,
            gpus=by_stage(gpus if is_synced else 0.0, seen.standing.stages),
            since_seconds=end.at - begin.at,
            steps=end.steps - begin.steps,
            confidence=score,
            has_risen=split is not None and not is_synced,
        )


def _beside(reduction: Reduction, marks: Sequence[Mark], seen: WindowEvidence) -> list[float]:
    """Return the rank's excess over its peers in each step, as a ratio."""
    peers = [rank for rank, name in reduction.groups.items() if name == seen.group.name]
    found = []
    for begin, end in pairwise(marks):
        own = reduction.own(begin, end)
        usual = sorted(own[rank] for rank in peers)[(len(peers) - 1) // 3]
        found.append(own[seen.standing.rank] / usual - 1 if usual else 0.0)
    return found


def _explained(beside: Sequence[float], seen: WindowEvidence, *, is_synced: bool) -> float:
    """Return the least excess of a rank that was slow all the time."""
    error = spread(beside) / math.sqrt(len(beside))
    by_peers = SPREADS * seen.group.spread / seen.baseline
    least = LEAST_EXCESS if is_synced else FAR_APART
    return max(least, errors(len(beside)) * error, by_peers)


def _changes(reduction: Reduction, marks: Sequence[Mark]) -> Iterator[Change]:
    """Yield the groups of which a stage takes longer than before."""
    windows = [reduction.window(begin, end, ()) for begin, end in pairwise(marks)]
    step_seconds = [window.seconds for window in windows]
    for position, group in enumerate(windows[-1].groups):
        steps = [window.groups[position] for window in windows]
        split, stage = _longer_stage(steps, LEAST_CHANGE * median(step_seconds))
        if split is None:
            continue
        step_ratio = median(step_seconds[split.at :]) / median(step_seconds[: split.at])
        is_new = split.before <= STAGE_SHARE * median(step_seconds)
        ranks = sum(each.ranks for each in windows[-1].groups)
        yield Change(
            peer_group=group.name,
            stage=WORK_STAGES[stage],
            ratio=step_ratio if is_new else 1 + split.more / split.before,
            since_seconds=marks[-1].at - marks[split.at].at,
            step_ratio=step_ratio,
            gpus=ranks * max(1 - 1 / step_ratio, 0.0),
        )


def _longer_stage(steps: Sequence[WindowGroup], least: float) -> tuple[Split | None, int]:
    """Return the stage that has grown most, if the group's own time has grown with it."""
    own = [sum(step.stages[at] for at in WORK) for step in steps]
    found = ((longer([step.stages[stage] for step in steps], least), stage) for stage in WORK)
    grown = [
        (split, stage)
        for split, stage in found
        if split and median(own[split.at :]) - median(own[: split.at]) > split.more / 2
    ]
    return max(grown, key=lambda each: each[0].more, default=(None, 0))

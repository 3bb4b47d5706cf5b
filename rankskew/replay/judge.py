"""Feeds a trace to the judge, as rank 0's join does while a job runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rank_probe.judge.judge import WARMUP_STEPS, Judge
from rank_probe.judge.own_past import Lasted
from rank_probe.judge.verdict import Verdict
from rank_probe.judge.windows import Leader
from rankskew.accounting.windows import PlainReduction
from rankskew.replay import short
from rankskew.replay.timeline import TraceStretch, TraceTimeline, has_sync
from rankskew.replay.traces import Run

# As often as the join calls the judge, in jobs of up to 256 ranks.
EVERY_SECONDS: Final = 2.0
# Without waits a rank is compared with its own past, step by step unless there are too many steps.
UNSYNCED_VERDICTS: Final = 10_000
# A verdict takes some 30 µs per rank, so long runs and large jobs get fewer verdicts.
MOST_VERDICTS_ON_RANKS: Final = 300_000
# Times in files are rounded; this keeps the ends of two steps apart.
TICK_SECONDS: Final = 1e-6

# Called with the finished share of the work.
Progress = Callable[[float], None]


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


def judge(
    run: Run, line: TraceTimeline, stretches: Sequence[TraceStretch], progress: Progress
) -> list[JudgedStretch]:
    """Judge each of *stretches* separately: with other ranks it is another job."""
    steps = sum(len(stretch.steps) for stretch in stretches)
    is_short = short.is_short([len(stretch.steps) for stretch in stretches])
    judged, done = [], 0
    for stretch in stretches:
        found = JudgedStretch(stretch)
        for of_stretch in _judge(run, line, found, is_short=is_short):
            progress((done + of_stretch) / steps)
        done += len(stretch.steps)
        judged.append(found)
    return judged


def _judge(run: Run, line: TraceTimeline, found: JudgedStretch, *, is_short: bool) -> Iterator[int]:
    """Add the verdicts to *found*; yield how many steps they cover."""
    ranks, steps = found.stretch.ranks, found.stretch.steps
    often = EVERY_SECONDS
    if not has_sync(run):
        often = min(often, line.seconds / UNSYNCED_VERDICTS)
    every = max(often, line.seconds * len(ranks) / MOST_VERDICTS_ON_RANKS)
    names = sorted({run.nodes[rank] for rank in ranks})
    nodes = {rank: names.index(run.nodes[rank]) for rank in ranks if run.nodes[rank]}
    reduction = PlainReduction({rank: run.peer_groups[rank] for rank in ranks}, nodes)
    judge = Judge(reduction)
    leaders: list[Leader] = []
    marks = [reduction.mark(found.stretch.begin)]
    stride, number, at, due = _stride(steps), 0, 0.0, 0.0
    for done, step in enumerate(steps, 1):
        at = max(at + TICK_SECONDS, *(line.ends[rank][step] for rank in ranks))
        # Count in sampled steps: for the judge, they are consecutive.
        number = max(number + 1, (step - steps[0]) // stride)
        stages = {
            rank: {stage: seconds * line.scale for stage, seconds in run.steps[step][rank].items()}
            for rank in ranks
        }
        leaders.append(reduction.add(number, stages, at))
        if len(steps) < short.COMPARED_STEPS:
            marks.append(reduction.mark(at))
        # The judge starts when the warm-up ends, at the latest.
        if at >= due or done in (WARMUP_STEPS, len(steps)):
            found.verdicts.append((at, judge.judge(reduction.mark(at), leaders, step=number)))
            leaders, due = [], at + every
            yield done
    if not found.verdicts:
        return
    found.ended, found.warm = judge.ended, judge.began or 0.0
    at, said = found.verdicts[-1]
    if is_short and short.is_silent(said):
        found.verdicts, found.warm = [(at, said)], found.stretch.begin
    if is_short or len(steps) >= short.JUDGED_STEPS:
        found.verdicts[-1] = at, short.verdict(said, reduction, marks)


def _stride(steps: Sequence[int]) -> int:
    """Return the usual distance between sampled *steps*: 1 if all were recorded."""
    apart = sorted(b - a for a, b in pairwise(steps))
    return apart[len(apart) // 2] if apart else 1

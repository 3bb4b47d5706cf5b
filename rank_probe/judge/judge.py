"""The judge: which ranks of a job are late, in which stage, since when, and at what cost.

It decides from the statistics of windows.py: in rank 0's join while the job runs, in
`rankskew replay` afterwards. It keeps the state of each incident, so that an incident has one
onset, one stage and one end.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from rank_probe.judge.changes import Changes
from rank_probe.judge.common import Facts, together
from rank_probe.judge.incidents import Incidents
from rank_probe.judge.own_past import Lasted, OwnPast
from rank_probe.judge.pauses import Paused, Pauses
from rank_probe.judge.stalls import Stalls, Stop, told
from rank_probe.judge.verdict import (
    DUTY,
    MILD,
    MOST_LATE,
    MOST_TOGETHER,
    NO_BUSY_TIME,
    NO_PEERS,
    NO_SYNC,
    PAUSES,
    UNSYNCED,
    WARMING_UP,
    Late,
    Verdict,
    settled,
)
from rank_probe.judge.windows import (
    LEAST_OWN_SECONDS,
    LEAST_STEPS,
    WORK_STAGES,
    Leader,
    Mark,
    MarkHistory,
    Reduction,
    Window,
)
from rank_probe.wire.stages import STAGES

# The first steps compile kernels and fill caches. Long steps need fewer warm-up steps.
WARMUP_STEPS: Final = 5
SLOW_WARMUP_STEPS, SLOW_SECONDS = 2, 10.0
# Windows in seconds, each with enough steps for a verdict. A window is examined again once a tenth
# of its length has passed, since a longer one changes more slowly.
HORIZONS: Final = (5.0, 30.0, 60.0, 300.0, 1800.0)
LOOKS: Final = 10
JOB_SECONDS: Final = 60.0
# The largest share of a step that can be saved: rounding must not make it a whole step.
LARGEST_SHARE: Final = 0.999
# A rank that was named before gets this much more weight, if only some can be named.
STAYS_NAMED: Final = 1.5
# With normal noise the median exceeds the 1/3 quantile by this many deviations. The slowest of n
# ranks exceeds the mean by less than sqrt(2 ln n) deviations.
MEDIAN_DEVIATIONS: Final = 0.43
# The largest share of GPU time that healthy ranks cost: beyond that, their work differs.
MOST_NOISE: Final = 0.07
# Hysteresis: the reported rotating loss is kept until it rises, or falls by this share.
STEADY: Final = 0.1
# Length of the earlier window that shows a rank's past, in windows.
EARLIER: Final = 2


class Judge:
    """Judges one run of a job; *reduction* provides the statistics.

    *facts* are what is known of the ranks; more may be added while it judges.
    """

    def __init__(self, reduction: Reduction, facts: Facts | None = None) -> None:
        self._reduction = reduction
        self._facts = {} if facts is None else facts
        sizes = Counter(reduction.groups.values()).values()
        self._history = MarkHistory(min((size for size in sizes if size > 1), default=2))
        self._incidents = Incidents(reduction, self._history)
        self._pauses = Pauses()
        self._stalls = Stalls()
        self._changes = Changes(reduction, self._history, self._facts)
        self._own_past = OwnPast(reduction, self._history)
        self._told: dict[int, int] = {}  # The place of each rank in the last verdict.
        self._turns = 0.0  # What ranks lost in turn in the last verdict, in GPUs.
        self._before: Mark | None = None
        self._next_looks = dict.fromkeys(HORIZONS, -math.inf)

    def judge(
        self,
        mark: Mark,
        leaders: Sequence[Leader],
        *,
        step: int,
        absent: int = 0,
        work: float = 0.0,
    ) -> Verdict:
        """Return the verdict after the steps up to *mark*.

        *leaders* are those of the steps since the last call; *step* is the number of the last one.
        *absent* is how many ranks of the job are not judged. *work* counts the tokens, or else the
        samples, of a rank so far; 0 if it is not known.
        """
        if mark.steps >= WARMUP_STEPS or self._is_slow(mark):
            self._history.add(mark)
        self._before = mark
        marks = self._history.marks
        if not marks or mark.steps - marks[0].steps < self._history.least_steps:
            early = [each for each in leaders if marks and each.at > marks[0].at]
            self._pauses.wait(early)
            self._stalls.add(early, len(self._reduction.groups))
            ranks = dict(Counter(self._reduction.groups.values()))
            return Verdict(step, ranks, absent, WARMING_UP)
        self._stalls.add(leaders, len(self._reduction.groups))
        windows = list(self._windows(mark))
        reason = why_not(windows[0])
        late: list[Late] = []
        if reason is None:
            self._pauses.note(leaders, windows[0], self._incidents.steady)
        if reason in (None, NO_SYNC):
            paused_at = self._pauses.latest
            late = self._incidents.named(windows, mark, paused_at, synced=reason is None)
        if reason is None:
            paused = self._pauses.named(windows[0], mark.at, self._incidents.steady)
            told_so = {each.rank for each in paused}  # Their cost includes a mild lateness.
            late = [each for each in late if each.rank not in told_so]
            late += [self._late(each, mark, step) for each in paused]
        elif reason == NO_SYNC:
            late += self._own_past.named(mark)
        late.sort(key=self._urgency)
        told = sorted(late[:MOST_LATE], key=lambda each: self._told.get(each.rank, MOST_LATE))
        late[:MOST_LATE] = settled(told, _cost)
        self._told = {each.rank: place for place, each in enumerate(late[:MOST_LATE])}
        sets = together(late, self._reduction.groups, self._facts)
        return self._verdict(
            Verdict(
                step,
                ranks={group.name: group.ranks for group in windows[0].groups},
                absent=absent,
                reason=reason,
                late=tuple(late),
                changes=()
                if reason == NO_BUSY_TIME
                else self._changes.named(windows[0], mark, step, work),
                together=tuple(islice(sets, MOST_TOGETHER)),
            ),
            mark,
        )

    @property
    def began(self) -> float | None:
        """Return when the warm-up ended; None while it lasts."""
        return self._history.marks[0].at if self._history.marks else None

    @property
    def ended(self) -> Sequence[Lasted]:
        """Return the ranks that were slower than before for a while, where no wait is measured."""
        return self._own_past.ended

    def _is_slow(self, mark: Mark) -> bool:
        """Whether steps are so long that SLOW_WARMUP_STEPS of them are warm-up enough."""
        if self._before is None or mark.steps < SLOW_WARMUP_STEPS:
            return False
        steps = mark.steps - self._before.steps
        return mark.at - self._before.at >= SLOW_SECONDS * steps

    def _windows(self, end: Mark) -> Iterator[Window]:
        """Yield the windows that end now, shortest first, each once."""
        due = [each for each in HORIZONS if end.at >= self._next_looks[each]]
        last: Mark | None = None
        for seconds in HORIZONS[: HORIZONS.index(max(due, default=HORIZONS[0])) + 1]:
            self._next_looks[seconds] = end.at + seconds / LOOKS
            begin = self._since(end, seconds)
            if begin is not last:
                earlier = self._earlier(begin, end)
                yield self._reduction.window(begin, end, self._incidents.ranks, earlier)
            last = begin

    def _since(self, end: Mark, seconds: float) -> Mark:
        first = self._history.marks[0]
        if end.steps - first.steps < LEAST_STEPS:
            return first
        return self._history.before(end, seconds, self._history.least_steps) or first

    def _earlier(self, begin: Mark, end: Mark) -> tuple[Mark, Mark] | None:
        """Return the window before *begin*, EARLIER times as long as up to *end*; None if none."""
        seconds, steps = EARLIER * (end.at - begin.at), EARLIER * (end.steps - begin.steps)
        first = self._history.before(begin, seconds, steps)
        return (first, begin) if first else None

    def _urgency(self, late: Late) -> tuple[float, float, int]:
        """Put the costliest first; ranks in the last verdict get extra weight."""
        gpus, excess = _cost(late)
        return -gpus * (STAYS_NAMED if late.rank in self._told else 1.0), -excess, late.rank

    def _late(self, found: Paused, end: Mark, step: int) -> Late:
        return Late(
            rank=found.rank,
            peer_group=self._reduction.groups[found.rank],
            stage=found.stage,
            kind=DUTY if found.is_duty else PAUSES,
            ratio=found.ratio,
            gpus=found.gpus,
            since_seconds=end.at - found.first.at,
            steps=step - found.first.step,
            confidence=found.confidence,
            every_steps=found.every_steps,
            pause_seconds=found.pause_seconds,
        )

    def _verdict(self, found: Verdict, end: Mark) -> Verdict:
        """Return *found* with the job's losses, over the last minute or since the last onset."""
        begin = self._since(end, JOB_SECONDS)
        for onset in self._incidents.onsets:
            if begin.at < onset.at and end.steps - onset.steps >= self._history.least_steps:
                begin = onset
        late = {each.rank: each for each in found.late}
        window = self._reduction.window(begin, end, late)
        stalls = list(self._stalls.shared(window, end.at))
        verdict = replace(
            found, late=found.late[:MOST_LATE], step_seconds=window.seconds / window.steps
        )
        long = self._stalls.long(end.at)
        if found.reason is not None:
            return replace(verdict, stalls=tuple(stalls))
        shared = {each.stage for each in stalls}
        steady = {each.rank for each in found.late if each.kind != MILD}
        stops = [
            each
            for each in long
            if (STAGES[each.stage] not in shared if each.all else each.step.rank not in steady)
        ]
        ranks = sum(found.ranks.values())
        lost, rotating = self._losses(found, window, stops)
        lost["shared"] = sum(each.share for each in stalls) * ranks
        if in_turn := self._pauses.in_turn(begin.at, lost["rotating"] / ranks):
            stalls.append(in_turn)
        return replace(
            verdict,
            slowdown=_slowdown(window, sum(each.gpus_lost for each in found.late), late),
            gpus_lost=lost,
            rotating=rotating,
            pauses=told(stops, end.at),
            stalls=tuple(stalls),
        )

    def _losses(
        self, found: Verdict, window: Window, stops: Sequence[Stop]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the GPUs lost in *window* by kind, without `shared`; and `rotating` by stage.

        `rotating` is what remains of the caused waits after the other kinds are subtracted.
        """
        seconds, ranks = window.seconds, sum(found.ranks.values())
        late = {each.rank: each for each in found.late}
        # Rounding may make it slightly negative, here and below.
        left = {
            stage: max(caused, 0.0)
            for stage, caused in zip(WORK_STAGES, window.caused, strict=True)
        }
        for group in window.groups:
            for standing in group.standing:
                if standing.rank in late:
                    _take(left, late[standing.rank].gpus, standing.caused * window.steps)
        # One or two single pauses do not mean that ranks take turns; nor does a long stop.
        recent = [each for each in stops if each.step.at > window.begin.at]
        single = {each.step: each for each in self._pauses.since(window.begin.at)}
        single |= {each.step.step: each.step for each in recent if not each.all}
        paused = sum(
            _take(left, {WORK_STAGES[each.stage]: 1.0}, each.caused)
            for each in single.values()
            if each.rank not in late
        )
        paused += sum(each.gpu_seconds for each in recent if each.all)
        # Nor do the waits for the ranks that a change names.
        known = 0.0
        for change in found.changes:
            if change.slower:
                waits = (change.peers - change.slower) * (1 - 1 / change.step_ratio)
                known += _take(left, {change.stage: 1.0}, waits * seconds)
        # Nor does the usual variation of healthy ranks.
        deviation = window.varied / MEDIAN_DEVIATIONS
        usual = min(deviation * math.sqrt(2 * math.log(ranks)), MOST_NOISE * seconds) * ranks
        whole = sum(left.values())
        turns = max(whole - usual, 0.0) / seconds
        if not (1 - STEADY) * self._turns <= turns <= self._turns:
            self._turns = turns
        share = min(self._turns * seconds / whole, 1.0) if whole else 0.0
        left = {stage: own * share for stage, own in left.items()}
        lost = {
            "group": max(window.unequal, 0.0) / seconds,
            "persistent": sum(each.gpus_lost for each in found.late) + known / seconds,
            "pause": paused / seconds,
            "rotating": sum(left.values()) / seconds,
            "noise": (1 - share) * whole / seconds,
            "common": max(window.sync - window.waited, 0.0) / seconds,
        }
        return lost, {stage: own / seconds for stage, own in left.items() if own}


def _cost(late: Late) -> tuple[float, float]:
    """Return the GPUs lost and the excess, times its duration where no wait is measured."""
    return late.gpus_lost, late.ratio * (late.since_seconds if late.kind == UNSYNCED else 1.0)


def _slowdown(window: Window, lost: float, late: Collection[int]) -> float:
    """Return how many times longer steps take because of the *late* ranks, which cost *lost* GPUs.

    Without them, each other rank would save the time that it waits for them; late ranks wait for
    later ones, too.
    """
    ranks = sum(group.ranks for group in window.groups)
    if len(late) >= ranks:
        return 1.0
    step_seconds = window.seconds / window.steps
    busy = ranks * step_seconds - window.sync / window.steps
    slowest = (window.waited / window.steps + busy) / ranks
    own = (
        max(slowest - standing.busy, 0.0)
        for group in window.groups
        for standing in group.standing
        if standing.rank in late
    )
    spared = max(lost * step_seconds - sum(own), 0.0) / (ranks - len(late))
    return 1 / (1 - min(spared / step_seconds, LARGEST_SHARE))


def _take(rotating: dict[str, float], shares: Mapping[str, float], seconds: float) -> float:
    """Subtract *seconds* from the rotating loss, largest *shares* first; return what was taken."""
    left = seconds
    for stage in sorted(rotating, key=lambda stage: -shares.get(stage, 0.0)):
        taken = min(rotating[stage], left)
        rotating[stage] -= taken
        left -= taken
    return seconds - left


def why_not(window: Window) -> str | None:
    """Return the reason why the job cannot be judged, given a window of its steps."""
    if all(group.ranks == 1 for group in window.groups):
        return NO_PEERS
    if any(group.baseline < LEAST_OWN_SECONDS for group in window.groups):
        return NO_BUSY_TIME
    return NO_SYNC if window.sync <= 0 else None

"""Stalls: single long stops of one rank or of all, and recurring stops of all ranks."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from rank_probe.judge.verdict import MOST_PAUSES, Pause, Stall
from rank_probe.judge.windows import Leader, Window, stride
from rank_probe.wire.stages import DATA, H2D, STAGES

# Number of steps that define how long a usual step takes.
USUAL_STEPS, FEWEST_STEPS = 200, 6
# A stop is long from ten usual steps on, and at least five seconds; or from ten seconds on, and at
# least two usual steps.
LONG_STEPS, LEAST_LONG, LONG_SECONDS, LEAST_STEPS = 10.0, 5.0, 10.0, 2.0
# How long a long stop is reported.
TOLD_SECONDS: Final = 1800.0
# All ranks stall in a step that takes twice as long as usual. FEWEST_STALLS are no chance. Stalls
# more often than every second step are usual; stalls overdue by OVERDUE_INTERVALS are over.
STALL_RATIO, FEWEST_STALLS, RECENT_STALLS, MOST_STALLS = 2.0, 3, 8, 64
FEWEST_APART, OVERDUE_INTERVALS = 2, 3.0
# A loader that keeps up takes a hundredth of a step; beyond this share, all ranks wait for data.
DATA_SHARE: Final = 0.2


class Stop(NamedTuple):
    """One long stop: of a step's leader, or of *all* ranks in the stage that took them longest."""

    step: Leader
    all: bool
    seconds: float
    gpu_seconds: float

    @property
    def stage(self) -> int:
        """Return the stage of the stop."""
        return self.step.longest if self.all else self.step.stage


class Stalls:
    """Examines how long each step took, beside a usual one."""

    def __init__(self) -> None:
        self._waiting: list[Leader] = []
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        self._long: list[Stop] = []
        self._shared: deque[Leader] = deque(maxlen=MOST_STALLS)
        self._stride = 1.0

    def add(self, leaders: Iterable[Leader], ranks: int) -> None:
        """Note the *leaders* of new steps, of so many *ranks*."""
        self._waiting.extend(leaders)
        if len(self._usual) + len(self._waiting) < FEWEST_STEPS:
            return
        new, self._waiting = self._waiting, []
        self._stride = stride(new, self._stride)
        self._usual.extend(each.baseline for each in new)
        usual = median(self._usual)
        long = max(LEAST_STEPS * usual, min(max(LONG_STEPS * usual, LEAST_LONG), LONG_SECONDS))
        for each in new:
            if each.lead >= long:
                self._long.append(Stop(each, False, each.lead, each.caused))
            if (lost := each.baseline - usual) >= long:
                self._long.append(Stop(each, True, lost, lost * ranks))
        self._shared.extend(each for each in new if each.baseline > STALL_RATIO * usual)

    def long(self, at: float) -> list[Stop]:
        """Return the long stops that are told, as of *at*."""
        self._long = [each for each in self._long if each.step.at > at - TOLD_SECONDS]
        return self._long

    def shared(self, window: Window, at: float) -> Iterator[Stall]:
        """Yield what all ranks stop for now, as of *at*; *window* has the last minute's steps."""
        data = max(each.stages[DATA] + each.stages[H2D] for each in window.groups)
        once = sum(
            each.seconds
            for each in self._long
            if each.all and each.stage == DATA and each.step.at > window.begin.at
        )
        share = (data * window.steps - once) / window.seconds
        found: dict[int, Stall] = {}
        for stage in sorted({each.longest for each in self._shared}):
            own = _recent([each for each in self._shared if each.longest == stage])
            apart = [b.step - a.step for a, b in pairwise(own)]
            if len(own) < FEWEST_STALLS or median(apart) < FEWEST_APART * self._stride:
                continue
            longest = max(b.at - a.at for a, b in pairwise(own))
            if at - own[-1].at > OVERDUE_INTERVALS * longest:
                continue
            found[stage] = self._stall(own, round(median(apart)), window)
        known = found[DATA].share if DATA in found else 0.0
        if share - known > DATA_SHARE:  # In each step, not only in those that stall.
            found[DATA] = Stall(STAGES[DATA], share)
        yield from found.values()

    def _stall(self, own: Sequence[Leader], every_steps: int, window: Window) -> Stall:
        usual, elapsed = median(self._usual), own[-1].at - own[0].at
        lost = [each.baseline - usual for each in own]
        # If steps are sampled, so are stalls; but the steps in between take their time.
        share = sum(lost[1:]) / (elapsed * window.seconds / window.elapsed)
        most = 1 - usual * (own[-1].step - own[0].step) / elapsed
        stage = STAGES[own[0].longest]
        return Stall(stage, max(min(share, most), 0.0), every_steps, median(lost))


def _recent(own: Sequence[Leader]) -> Sequence[Leader]:
    """Return the last few of *own*, without what came long before them."""
    own = own[-RECENT_STALLS:]
    while len(own) > FEWEST_STALLS:
        first, *later = [b.at - a.at for a, b in pairwise(own)]
        if first <= OVERDUE_INTERVALS * median(later):
            break
        own = own[1:]
    return own


def told(stops: Iterable[Stop], at: float) -> tuple[Pause, ...]:
    """Return the costliest of *stops* as of *at*, the latest first."""
    costliest = sorted(stops, key=lambda each: -each.gpu_seconds)[:MOST_PAUSES]
    return tuple(
        Pause(
            None if each.all else each.step.rank,
            STAGES[each.stage],
            each.step.step,
            at - each.step.at,
            each.seconds,
            each.gpu_seconds,
        )
        for each in sorted(costliest, key=lambda each: -each.step.at)
    )

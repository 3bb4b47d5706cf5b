"""Pauses: find a rank that delays the others now and then, as opposed to random pauses."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from rank_probe.judge.windows import Leader, Window
from rank_probe.wire.stages import CHECKPOINT, EVAL, OTHER, STAGES

# A pause is at least this share of a step, and this many times the usual lead of the slowest rank.
PAUSE_RATIO: Final = 0.2
PAUSE_LEADS: Final = 4.0
# Number of steps whose leads define the usual lead.
LEADS, FEWEST_LEADS = 200, 20
# How many pauses of all ranks are kept, and how many of one rank are examined.
EVENTS: Final = 256
MOST_EVENTS: Final = 16
# Three could be chance, whatever else they have in common.
FEWEST_EVENTS: Final = 3
# Delays more often than every fourth step are not pauses.
FEWEST_STEPS_APART: Final = 4
# How unlikely chance must be: e ** -7 is 1 in 1,100. Some duties belong to one rank by design.
SURPRISE: Final = 7.0
SURPRISE_OF_DUTIES: Final = 3.0
DUTIES: Final = (CHECKPOINT, EVAL)
# Intervals are regular if they are multiples of the shortest one, within 1 / REGULAR_PARTS of it.
REGULAR_PARTS: Final = 50
# If the next pause is overdue by three intervals, the pauses have ended.
OVERDUE_INTERVALS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Paused:
    """A rank that pauses: *gpus* lost and *ratio* of its own time are means between its pauses.

    *every_steps* and *pause_seconds* are medians.
    """

    rank: int
    stage: str
    is_duty: bool
    every_steps: int
    pause_seconds: float
    ratio: float
    gpus: float
    first: Leader
    confidence: float


class Pauses:
    """Examines the leader of each step, and keeps the pauses of the last steps."""

    def __init__(self) -> None:
        self._leads: deque[float] = deque(maxlen=LEADS)
        self._events: deque[Leader] = deque(maxlen=EVENTS)
        self._first: dict[int, Leader] = {}
        self._stage: dict[int, str] = {}

    @property
    def ranks(self) -> Collection[int]:
        """Return the ranks that pause."""
        return self._first.keys()

    def named(
        self, leaders: Sequence[Leader], window: Window, at: float, steady: Iterable[int]
    ) -> list[Paused]:
        """Return the ranks that pause, given the *leaders* of the new steps.

        *window* gives the current baselines; *steady* ranks are late all the time.
        """
        self._note(leaders, window, frozenset(steady))
        ranks = sum(group.ranks for group in window.groups)
        for rank in {each.rank for each in leaders} - self._first.keys():
            self._name(rank, ranks)
        for rank in list(self._first):
            if rank in steady or self._is_over(rank, at):
                del self._first[rank], self._stage[rank]
        return [self._paused(rank, window, ranks) for rank in sorted(self._first)]

    def since(self, at: float) -> list[Leader]:
        """Return the pauses since *at*, if they are so few that nothing follows from them."""
        events = [each for each in self._events if each.at > at]
        return events if len(events) < FEWEST_EVENTS else []

    def _note(self, leaders: Sequence[Leader], window: Window, steady: frozenset[int]) -> None:
        heaviest = max(group.baseline for group in window.groups)
        self._leads.extend(each.lead for each in leaders)
        if len(self._leads) < FEWEST_LEADS:
            return
        # The steps of a rank that was late all the time do not become pauses afterwards.
        self._events = deque((e for e in self._events if e.rank not in steady), maxlen=EVENTS)
        least = max(PAUSE_RATIO * heaviest, PAUSE_LEADS * median(self._leads))
        self._events.extend(
            each
            for each in leaders
            # If all ranks pause, the one that takes longest does the same as the others.
            if each.lead > max(least, each.baseline - heaviest) and each.rank not in steady
        )

    def _name(self, rank: int, ranks: int) -> None:
        own = self._own(rank)
        for first in own[-MOST_EVENTS : -FEWEST_EVENTS + 1]:
            since = [each for each in own if each.step >= first.step]
            if _steps_apart(since) >= FEWEST_STEPS_APART and self._surprise(since, ranks) > _limit(
                since
            ):
                self._first[rank], self._stage[rank] = first, STAGES[_stage(since)]
                return

    def _surprise(self, own: Sequence[Leader], ranks: int) -> float:
        """Return how unlikely it is that one rank has these pauses by chance, in nats.

        It combines the probability that so many of all pauses since the first belong to this rank,
        if each strikes any rank equally, with the regularity of their intervals. It corrects for
        the number of pauses, because many pauses give chance many tries.
        """
        everybody = [each for each in self._events if own[0].step <= each.step <= own[-1].step]
        others = len(everybody) - 1
        chance = sum(
            math.comb(others, mine) * (1 / ranks) ** mine * (1 - 1 / ranks) ** (others - mine)
            for mine in range(len(own) - 1, others + 1)
        )
        # If the pauses of all ranks together are regular, that does not point to one rank.
        is_everybodys = others >= len(own) and _regularity(everybody) > 0
        regularity = 0.0 if is_everybodys else _regularity(own)
        return -math.log(chance * len(self._events)) + regularity

    def _is_over(self, rank: int, at: float) -> bool:
        own = self._own(rank)
        if len(own) < FEWEST_EVENTS or _steps_apart(own[-8:]) < FEWEST_STEPS_APART:
            return True
        intervals = [b.at - a.at for a, b in pairwise(own)]
        return at - own[-1].at > OVERDUE_INTERVALS * max(intervals[-8:])

    def _paused(self, rank: int, window: Window, ranks: int) -> Paused:
        """Describe it, from just after one pause to just after another: no interval is cut."""
        first = self._first[rank]
        own = [each for each in self._own(rank) if each.step >= first.step][-MOST_EVENTS:]
        # If steps are sampled, so are pauses.
        seconds = (own[-1].at - own[0].at) * window.seconds / window.elapsed
        steps = seconds / (window.seconds / window.steps)
        heaviest = max(group.baseline for group in window.groups)
        return Paused(
            rank=rank,
            stage=self._stage[rank],
            is_duty=_is_duty(own, heaviest),
            every_steps=round(median(b.step - a.step for a, b in pairwise(own))),
            pause_seconds=median(each.lead for each in own),
            ratio=sum(each.lead for each in own[1:]) / steps / heaviest,
            gpus=sum(each.caused for each in own[1:]) / seconds,
            first=first,
            confidence=max(self._surprise(own, ranks), 0.0) / _limit(own),
        )

    def _own(self, rank: int) -> list[Leader]:
        return [each for each in self._events if each.rank == rank]


def _limit(own: Sequence[Leader]) -> float:
    return SURPRISE_OF_DUTIES if _stage(own) in DUTIES else SURPRISE


def _is_duty(own: Sequence[Leader], heaviest: float) -> bool:
    """Whether it does something for all: it saves or evaluates, or it logs.

    To log is to do something in `other` at regular steps, shorter than the *heaviest* usual step.
    It is no duty if the others do it as well, beyond that step: then it is slower at that.
    """
    if median(each.baseline for each in own) > (1 + PAUSE_RATIO) * heaviest:
        return False
    stage = _stage(own)
    is_short = median(each.lead for each in own) < heaviest
    return stage in DUTIES or (stage == OTHER and is_short and _regularity(own) > 0)


def _stage(own: Sequence[Leader]) -> int:
    """Return the stage with the largest loss."""
    lost: dict[int, float] = {}
    for each in own:
        lost[each.stage] = lost.get(each.stage, 0.0) + each.lead
    return max(lost, key=lambda stage: lost[stage])


def _steps_apart(own: Sequence[Leader]) -> float:
    return (own[-1].step - own[0].step) / max(len(own) - 1, 1)


def _regularity(own: Sequence[Leader]) -> float:
    intervals = [b.step - a.step for a, b in pairwise(own)]
    shortest = min(intervals)
    tolerance = shortest // REGULAR_PARTS
    off = (abs(each - round(each / shortest) * shortest) for each in intervals)
    if any(each > tolerance for each in off):
        return 0.0
    return (len(intervals) - 1) * math.log(shortest / (2 * tolerance + 1))

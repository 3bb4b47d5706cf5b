"""Pauses: find a rank that delays the others now and then, as opposed to random pauses."""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, pairwise
from operator import attrgetter
from statistics import median
from typing import Final

from rank_probe.judge.verdict import Stall
from rank_probe.judge.windows import Leader, Window, stride
from rank_probe.wire.stages import CHECKPOINT, EVAL, OTHER, STAGES

# A pause is at least this share of a step, and this many times the usual lead of the slowest rank.
PAUSE_RATIO: Final = 0.2
PAUSE_LEADS: Final = 4.0
# Number of steps whose leads define the usual lead.
LEADS, FEWEST_LEADS = 200, 20
# How many pauses of a sort are kept, and how many of one rank are examined.
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
# A rank with several sorts of pauses is reported for one until another costs this much more.
STAYS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Paused:
    """A rank that pauses: *gpus* lost and *ratio* of its own time are means between its pauses.

    *gpus* are by stage; the costliest duty includes those of the rank's other duties.
    *every_steps* and *pause_seconds* are medians.
    """

    rank: int
    stage: str
    is_duty: bool
    every_steps: int
    pause_seconds: float
    ratio: float
    gpus: Mapping[str, float]
    first: Leader
    confidence: float

    @property
    def gpus_lost(self) -> float:
        """All that it costs."""
        return sum(self.gpus.values())


class Pauses:
    """Examines the leader of each step, and keeps the pauses of the last steps."""

    def __init__(self) -> None:
        self._waiting: list[Leader] = []
        self._leads: deque[float] = deque(maxlen=LEADS)
        # Baselines are relative to the usual step when the pause was noted.
        self._events: list[Leader] = []
        # Since when, and in which stage, by the rank and the sort of its pauses.
        self._first: dict[tuple[int, int], Leader] = {}
        self._stage: dict[tuple[int, int], str] = {}
        self._told: dict[int, str] = {}
        self._stride = 1.0

    @property
    def latest(self) -> Mapping[int, float]:
        """Return when each of the ranks that pause did so last."""
        return {e.rank: e.at for e in self._events if (e.rank, _sort(e)) in self._first}

    def wait(self, leaders: Iterable[Leader]) -> None:
        """Keep *leaders* of steps that are too early for a verdict until there is one."""
        self._waiting.extend(leaders)

    def note(self, leaders: Sequence[Leader], window: Window, steady: Collection[int]) -> None:
        """Find the pauses among the *leaders* of the new steps, and the ranks that have them.

        *window* gives the current baselines; *steady* ranks are late all the time.
        """
        self.wait(leaders)
        self._stride = stride(leaders, self._stride)
        ranks, heaviest = sum(group.ranks for group in window.groups), _heaviest(window)
        if len(self._leads) + len(self._waiting) >= FEWEST_LEADS:
            leaders, self._waiting = self._waiting, []
            self._note(leaders, heaviest, steady)
            for who in {(each.rank, _sort(each)) for each in leaders} - self._first.keys():
                self._name(who, ranks, heaviest)

    def named(self, window: Window, at: float, steady: Collection[int]) -> list[Paused]:
        """Return the ranks that pause; *steady* ones are late all the time instead."""
        ranks = sum(group.ranks for group in window.groups)
        for who in list(self._first):
            if who[0] in steady or self._is_over(who, at):
                del self._first[who], self._stage[who]
        found = [self._paused(who, window, ranks) for who in sorted(self._first)]
        told = [self._most(list(own)) for _, own in groupby(found, key=attrgetter("rank"))]
        self._told = {each.rank: each.stage for each in told}
        return told

    def since(self, at: float) -> list[Leader]:
        """Return the pauses since *at*, if they are so few that nothing follows from them."""
        events = [each for each in self._events if each.at > at]
        return events if len(events) < FEWEST_EVENTS else []

    def in_turn(self, since: float, share: float) -> Stall | None:
        """Return the stall in which ranks have paused in turn *since* then, at a loss of *share*.

        None if they have not. Ranks that pause on their own are left out.
        """
        alone = self.latest
        recent = [each for each in self._events if each.at > since and each.rank not in alone]
        if len(recent) < FEWEST_EVENTS:
            return None
        own = _longest(recent)
        by_rank: dict[int, list[int]] = {}
        for each in own:
            by_rank.setdefault(each.rank, []).append(each.step)
        if len(by_rank) < FEWEST_EVENTS:
            return None
        apart = [b - a for steps in by_rank.values() for a, b in pairwise(steps)]
        every, seconds = round(median(apart or [0])), median(each.lead for each in own)
        return Stall(STAGES[_stage(own)], share, every, seconds, in_turn=True)

    def _note(self, leaders: Sequence[Leader], heaviest: float, steady: Collection[int]) -> None:
        self._leads.extend(each.lead for each in leaders)
        # The steps of a rank that was late all the time do not become pauses afterwards.
        self._events = [each for each in self._events if each.rank not in steady]
        least = max(PAUSE_RATIO * heaviest, PAUSE_LEADS * median(self._leads))
        self._events.extend(
            each._replace(baseline=each.baseline / heaviest)
            for each in leaders
            # If all ranks pause, the one that takes longest does the same as the others.
            if each.lead > max(least, each.baseline - heaviest) and each.rank not in steady
        )
        if len(self._events) > EVENTS:  # In a large job some rank pauses all the time.
            sorts = [[e for e in self._events if _sort(e) == sort] for sort in (*DUTIES, OTHER)]
            last = chain.from_iterable(own[-EVENTS:] for own in sorts)
            self._events = sorted(last, key=attrgetter("step"))

    def _name(self, who: tuple[int, int], ranks: int, heaviest: float) -> None:
        own = self._own(who)
        for first in own[-MOST_EVENTS : -FEWEST_EVENTS + 1]:
            since = [each for each in own if each.step >= first.step]
            if (
                _steps_apart(since) >= FEWEST_STEPS_APART * self._stride
                and self._confidence(since, ranks, heaviest) >= 1
            ):
                self._first[who], self._stage[who] = first, STAGES[_stage(since)]
                return

    def _confidence(self, own: Sequence[Leader], ranks: int, heaviest: float) -> float:
        """Return the evidence that one rank has these pauses, divided by the evidence required.

        Saving and evaluating are no chance: if no other rank does, a few times are enough.
        """
        stage = _stage(own)
        if stage not in DUTIES:
            return max(self._surprise(own, ranks), 0.0) / SURPRISE
        others = {each.rank for each in self._alike(own[0]) if each.step >= own[0].step}
        is_alone = len(others) == 1 and _is_duty(own, heaviest)
        alone = len(own) / FEWEST_EVENTS if is_alone else 0.0
        return max(self._surprise(own, ranks) / SURPRISE_OF_DUTIES, alone)

    def _surprise(self, own: Sequence[Leader], ranks: int) -> float:
        """Return how unlikely it is that one rank has these pauses by chance, in nats.

        It combines the probability that so many of all pauses since the first belong to this rank,
        if each strikes any rank equally, with the regularity of their intervals. It corrects for
        the number of pauses, because many pauses give chance many tries.
        """
        alike = self._alike(own[0])
        everybody = [each for each in alike if own[0].step <= each.step <= own[-1].step]
        others = len(everybody) - 1
        chance = sum(
            math.comb(others, mine) * (1 / ranks) ** mine * (1 - 1 / ranks) ** (others - mine)
            for mine in range(len(own) - 1, others + 1)
        )
        # If the pauses of all ranks together are regular, that does not point to one rank; nor does
        # it if most other ranks pause about as often.
        is_everybodys = others >= len(own) and _regularity(everybody) > 0
        is_everybodys |= _do_as_much(own, everybody) >= (ranks - 1) / 2
        regularity = 0.0 if is_everybodys else _regularity(own)
        return -math.log(chance * len(alike)) + regularity

    def _is_over(self, who: tuple[int, int], at: float) -> bool:
        own = self._own(who)
        least = FEWEST_STEPS_APART * self._stride
        if len(own) < FEWEST_EVENTS or _steps_apart(own[-8:]) < least:
            return True
        intervals = [b.at - a.at for a, b in pairwise(own)]
        return at - own[-1].at > OVERDUE_INTERVALS * max(intervals[-8:])

    def _paused(self, who: tuple[int, int], window: Window, ranks: int) -> Paused:
        """Describe the pauses over whole intervals, from the end of one to the end of another."""
        first, stage = self._first[who], self._stage[who]
        own = [each for each in self._own(who) if each.step >= first.step][-MOST_EVENTS:]
        # If steps are sampled, so are pauses.
        seconds = (own[-1].at - own[0].at) * window.seconds / window.elapsed
        steps = seconds / (window.seconds / window.steps)
        heaviest = _heaviest(window)
        longest = _longest(own)
        return Paused(
            rank=who[0],
            stage=stage,
            is_duty=_is_duty(own, heaviest),
            every_steps=round(median(b.step - a.step for a, b in pairwise(longest))),
            pause_seconds=median(each.lead for each in longest),
            ratio=sum(each.lead for each in own[1:]) / steps / heaviest,
            gpus={stage: sum(each.caused for each in own[1:]) / seconds},
            first=first,
            confidence=self._confidence(own, ranks, heaviest),
        )

    def _most(self, own: Sequence[Paused]) -> Paused:
        """Return the costliest of a rank's pauses; a duty includes its other duties' cost.

        The choice changes only if another costs much more.
        """
        stays = self._told.get(own[0].rank)
        most = max(own, key=lambda each: each.gpus_lost * (STAYS if each.stage == stays else 1.0))
        if not most.is_duty:
            return most
        duties = [each for each in own if each.is_duty]
        gpus = {stage: gpus for each in duties for stage, gpus in each.gpus.items()}
        return replace(most, gpus=gpus, ratio=sum(each.ratio for each in duties))

    def _alike(self, event: Leader) -> list[Leader]:
        return [each for each in self._events if _sort(each) == _sort(event)]

    def _own(self, who: tuple[int, int]) -> list[Leader]:
        return [each for each in self._events if (each.rank, _sort(each)) == who]


def _sort(event: Leader) -> int:
    """Return the sort of a pause: each duty is one of its own, all other stages share one."""
    return event.stage if event.stage in DUTIES else OTHER


def _heaviest(window: Window) -> float:
    """Return the usual own time of a step, in the group that needs most."""
    return max(group.baseline for group in window.groups)


def _is_duty(own: Sequence[Leader], heaviest: float) -> bool:
    """Whether the rank does something for all: it saves, evaluates or logs.

    Logging is a regular pause in `other`, shorter than the *heaviest* usual step. A pause is no
    duty if the step is long for the other ranks too: then this rank is merely slower at it.
    """
    if median(each.baseline for each in own) > 1 + PAUSE_RATIO:
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


def _longest(own: Sequence[Leader]) -> Sequence[Leader]:
    """Return those that make up half of the loss, and all that are half as long; at least two.

    Short ones beside them say neither how often nor for how long a rank pauses.
    """
    leads = sorted((each.lead for each in own), reverse=True)
    half = sum(lost < sum(leads) / 2 for lost in accumulate(leads))
    return [each for each in own if each.lead >= min(leads[half] / 2, leads[1])]


def _do_as_much(own: Sequence[Leader], everybody: Sequence[Leader]) -> int:
    """Return how many other ranks pause at least half as often, for at least half as long."""
    least = median(each.lead for each in own) / 2
    often = Counter(each.rank for each in everybody if each.lead >= least)
    return sum(times >= len(own) / 2 for times in often.values()) - 1


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

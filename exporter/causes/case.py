"""The case of a late rank: the excess, figures and thread states that rows are checked against."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.causes.excess import LARGEST, Excess, excess_of
from exporter.causes.model import PIPE, Evidence, Figures, Lateness, Peers, ThreadState
from exporter.causes.tokens import token_of, worker

DATA: Final = "data"


@dataclass(frozen=True, slots=True)
class Doing:
    """A *share* of the time in a stage that a thread spends on what *token* names, at *place*."""

    token: str
    share: float
    place: str


@dataclass(frozen=True, slots=True)
class Case:
    """A late rank. Figures that nobody can have, such as NaN or -1, are left out.

    *doing* maps each stage to what the main thread does there. Where it waits for loader workers,
    what the busiest of them does takes the place of that wait.
    """

    late: Lateness
    figures: Figures
    peers: Peers
    facts: Mapping[str, str]
    excess: Excess
    doing: Mapping[str, tuple[Doing, ...]]

    def own(self, figure: str) -> float | None:
        """Return the rank's own value."""
        return self.figures.get(figure)

    def lower(self, figure: str, healthy: float | None = None) -> float | None:
        """Return its peers' value of a figure that faults raise; *healthy* if it is not known."""
        return self.peers[figure].lower_third if figure in self.peers else healthy

    def upper(self, figure: str) -> float | None:
        """Return its peers' value of a figure that faults lower; None if it is not known."""
        return self.peers[figure].upper_third if figure in self.peers else None

    def share(self, seconds: float) -> float:
        """Return *seconds* a step as a share of the excess, 0 to 1."""
        return min(max(seconds / self.excess.total, 0.0), 1.0)

    def room(self, stages: Iterable[str], states: frozenset[str]) -> float:
        """Return the most seconds that a cause with these *states* can add in *stages*.

        Time seen in other states is excluded; time in no known state is included.
        """
        return sum(self._room(stage, states) for stage in stages)

    def likely(self, stages: Iterable[str], states: frozenset[str]) -> float:
        """Return the same, if the excess divides among states as the whole stage does."""
        more = self.excess.more
        return sum(more[s] * (1 - self._otherwise(s, states)) for s in stages if s in more)

    def stretched(self, stages: Iterable[str], states: frozenset[str], by: float) -> float:
        """Return the seconds added in *stages* if a share *by* of the time there is too much."""
        own = self.excess.own
        return sum(
            min(self._room(stage, states), by * own.get(stage, 0.0))
            for stage in stages
            if stage in self.excess.more
        )

    def seconds(self, states: frozenset[str]) -> float:
        """Return the seconds a step in which its thread was seen in *states*."""
        return sum(self._seconds(stage, states) for stage in self.doing)

    def spent(self, stages: Iterable[str], states: frozenset[str]) -> float:
        """Return the seconds in *states* that can be part of the excess in *stages*."""
        return sum(self._spent(stage, states) for stage in stages)

    def spent_beyond(self, stages: Iterable[str], states: frozenset[str]) -> float:
        """Return the same, scaled to the excess: peers spend their part of a stage likewise."""
        more, own = self.excess.more, self.excess.own
        return sum(self._spent(s, states) * more[s] / own[s] for s in stages if s in more)

    def spent_for_certain(self, stages: Iterable[str], states: frozenset[str]) -> float:
        """Return the part of the excess in *stages* that must have been spent in *states*.

        That is the rank's time in *states* beyond all of its peers' time in the stage.
        """
        own, more = self.excess.own, self.excess.more
        return sum(
            max(self._seconds(s, states) - (own[s] - more[s]), 0.0) for s in stages if s in more
        )

    def where(self, stages: Iterable[str], states: frozenset[str]) -> tuple[str, str, float]:
        """Return the stage in which *states* cost most, their place there, and their seconds."""
        known = [stage for stage in stages if self._spent(stage, states) > 0]
        if not known:
            return "", "", 0.0
        stage = min(known, key=lambda each: (-self._spent(each, states), each))
        found = [each for each in self.doing[stage] if each.token in states]
        seconds = sum(each.share for each in found) * self.excess.own[stage]
        return stage, min(found, key=lambda each: (-each.share, each.place)).place, seconds

    def _room(self, stage: str, states: frozenset[str]) -> float:
        if stage not in self.excess.more:
            return 0.0
        possible = (1 - self._otherwise(stage, states)) * self.excess.own[stage]
        return min(self.excess.more[stage], possible)

    def _spent(self, stage: str, states: frozenset[str]) -> float:
        return min(self.excess.more.get(stage, 0.0), self._seconds(stage, states))

    def _seconds(self, stage: str, states: frozenset[str]) -> float:
        share = sum(each.share for each in self.doing.get(stage, ()) if each.token in states)
        return share * self.excess.own.get(stage, 0.0)

    def _otherwise(self, stage: str, states: frozenset[str]) -> float:
        found = self.doing.get(stage, ())
        return min(sum(each.share for each in found if each.token not in states), 1.0)


def case_of(late: Lateness, evidence: Evidence, peers: Peers | None) -> Case | None:
    """Return the case of a *late* rank; None if nothing at all is known of it."""
    figures = {name: value for name, value in evidence.figures.items() if _is_sane(value)}
    usual = {name: each for name, each in (peers or {}).items() if all(map(_is_sane, each))}
    doing = _doing(evidence)
    if not figures and not doing:
        return None
    excess = excess_of(late, figures, usual)
    return Case(late, figures, usual, evidence.facts, excess, doing)


def _is_sane(value: float) -> bool:
    return 0 <= value <= LARGEST


def _doing(evidence: Evidence) -> dict[str, tuple[Doing, ...]]:
    found: dict[str, list[Doing]] = {}
    workers = _whole([_tokened(state) for state in _sane(evidence.worker_states)])
    for state in _sane(evidence.states):
        each = _tokened(state)
        of_stage = found.setdefault(state.stage, [])
        if state.stage == DATA and each.token == PIPE and workers:
            of_stage += [
                Doing(worker(other.token), each.share * other.share, other.place)
                for other in workers
            ]
        else:
            of_stage.append(each)
    return {stage: tuple(_whole(each)) for stage, each in found.items()}


def _sane(states: Iterable[ThreadState]) -> list[ThreadState]:
    return [state for state in states if math.isfinite(state.share) and state.share > 0]


def _tokened(state: ThreadState) -> Doing:
    return Doing(token_of(state), state.share, state.place)


def _whole(doing: list[Doing]) -> list[Doing]:
    """Return *doing* with shares of at most 1 in all."""
    total = sum(each.share for each in doing)
    return doing if total <= 1 else [replace(each, share=each.share / total) for each in doing]

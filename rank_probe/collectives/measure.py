"""Measures everything, and says what stands out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rank_probe.collectives import confirm
from rank_probe.collectives.measurements.operations import CollectiveTime, time_collectives
from rank_probe.collectives.measurements.pairwise import PairTime, gathered, time_rounds
from rank_probe.collectives.measurements.plan import Plan
from rank_probe.collectives.measurements.rounds import Round
from rank_probe.collectives.measurements.world import World
from rank_probe.collectives.named import Named, named
from rank_probe.collectives.verdict import Suspect, suspects


@dataclass(frozen=True, slots=True)
class MeasuredLinks:
    """All that was measured; *named* is empty if nothing stands out.

    *again* has the pairs that were measured a second time, alone, because some might be slow.
    """

    backend: str
    hosts: tuple[str, ...]
    collectives: Sequence[CollectiveTime]
    pairs: Sequence[PairTime]
    again: Sequence[PairTime]
    named: Sequence[Named]
    notes: Sequence[str]

    @property
    def best(self) -> list[PairTime]:
        """One time for each pair, by its ranks: from the second pass, as far as there is one."""
        found = {(one.first, one.second): one for one in (*self.pairs, *self.again)}
        return [one for _, one in sorted(found.items())]


def measure(world: World, plan: Plan, notes: Sequence[str] = ()) -> MeasuredLinks | None:
    """Return the result on rank 0; None on the others."""
    collectives = time_collectives(world, plan)
    pairs = _times(world, plan, plan.rounds, plan.seconds_of_each(len(plan.rounds)))
    again, found = _again(world, plan, pairs)
    if pairs is None:
        return None
    slow = named(found, world.hosts)
    return MeasuredLinks(world.backend, world.hosts, collectives, pairs, again, slow, notes)


def _again(
    world: World, plan: Plan, pairs: Sequence[PairTime] | None
) -> tuple[list[PairTime], list[Suspect]]:
    """Return the second times of the doubtful pairs, and what they show, on rank 0."""
    doubts = world.announce(confirm.to_repeat(pairs, world.hosts) if pairs else [])
    rounds = confirm.alone([(first, second) for first, second in doubts])
    readings: list[PairTime] = []
    found: list[Suspect] = []
    for _ in range(confirm.PASSES if rounds else 0):
        readings += _times(world, plan, rounds, plan.seconds_of_each(len(rounds)) / 2) or []
        if readings:
            best, noise = confirm.fastest(readings), confirm.noise(readings)
            found = suspects(best, world.hosts, noise)
        if not world.announce(bool(found)):
            break
    return confirm.fastest(readings), found


def _times(
    world: World, plan: Plan, rounds: Sequence[Round], seconds: float
) -> list[PairTime] | None:
    return gathered(world, time_rounds(world, rounds, plan.pair_bytes, seconds))

"""Measures everything, and says what stands out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rank_probe.collectives import confirm
from rank_probe.collectives.named import Named, named
from rank_probe.collectives.operations import CollectiveTime, time_collectives
from rank_probe.collectives.pairwise import PairTime, gathered, time_rounds
from rank_probe.collectives.plan import Plan
from rank_probe.collectives.verdict import suspects
from rank_probe.collectives.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """All that was measured; *named* is empty if nothing stands out.

    *again* has the pairs that were measured a second time, alone; *cleared* is the number of
    suspicions that this ended.
    """

    backend: str
    hosts: tuple[str, ...]
    collectives: Sequence[CollectiveTime]
    pairs: Sequence[PairTime]
    again: Sequence[PairTime]
    named: Sequence[Named]
    cleared: int
    notes: Sequence[str]


def measure(world: World, plan: Plan, notes: Sequence[str] = ()) -> Result | None:
    """Return the result on rank 0; None on the others."""
    collectives = time_collectives(world, plan)
    seconds = plan.seconds_of_each(len(plan.rounds))
    mine = time_rounds(world, plan.rounds, plan.pair_bytes, seconds)
    pairs = gathered(world, mine)
    found = [] if pairs is None else suspects(pairs, world.hosts)
    rounds = [] if pairs is None or not found else confirm.to_repeat(found, pairs, world.hosts)
    rounds = [tuple(map(tuple, pairs)) for pairs in world.announce(rounds)]
    again = confirm.repeat(world, rounds, plan.pair_bytes, plan.seconds_of_each(len(rounds)))
    if pairs is None or again is None:
        return None
    kept = confirm.confirmed(found, again, world.hosts)
    return Result(
        world.backend,
        world.hosts,
        collectives,
        pairs,
        again,
        named(kept, world.hosts),
        len(found) - len(kept),
        notes,
    )

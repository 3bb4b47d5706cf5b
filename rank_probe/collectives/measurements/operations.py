"""Runs the three collectives, and times them over all sizes."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rank_probe.collectives.measurements.convention import COLLECTIVES, Collective
from rank_probe.collectives.measurements.plan import Plan
from rank_probe.collectives.measurements.timing import WARM_UP, repetitions_in, timed
from rank_probe.collectives.measurements.units import show_bytes
from rank_probe.collectives.measurements.world import World

FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Seconds of one collective at one size: median and quartiles over repetitions.

    Each is the mean over ranks, as nccl-tests averages its time over ranks.
    """

    collective: Collective
    size_bytes: int
    seconds: float
    q1_seconds: float
    q3_seconds: float
    repetitions: int


def time_collectives(world: World, plan: Plan) -> list[CollectiveTime]:
    """Return the time of each collective at each size; every rank takes part."""
    mine = list(_my_times(world, plan))
    world.says("the exchange of the collectives' times")
    every_rank = [[CollectiveTime(**fields) for fields in times] for times in world.exchange(mine)]
    return [_mean(at_once) for at_once in zip(*every_rank, strict=True)]


def _mean(ranks: Sequence[CollectiveTime]) -> CollectiveTime:
    return replace(
        ranks[0],
        seconds=statistics.fmean(one.seconds for one in ranks),
        q1_seconds=statistics.fmean(one.q1_seconds for one in ranks),
        q3_seconds=statistics.fmean(one.q3_seconds for one in ranks),
    )


def _my_times(world: World, plan: Plan) -> Iterator[CollectiveTime]:
    for collective in COLLECTIVES:
        for size_bytes in plan.sizes_bytes:
            world.says(f"{collective} of {show_bytes(size_bytes)}")
            run = operation(world, collective, size_bytes)
            seconds = repeat(world, run, plan.collective_seconds)
            low, median, high = statistics.quantiles(seconds, n=4)
            yield CollectiveTime(collective, size_bytes, median, low, high, len(seconds))


def operation(world: World, collective: Collective, size_bytes: int) -> Callable[[], None]:
    """Return a function that runs *collective* once over the default process group."""
    import torch
    from torch import distributed

    # Zeros: the sum of any number of repetitions in place stays finite.
    whole = torch.zeros(size_bytes // FLOAT_BYTES, device=world.device)
    share = torch.zeros(size_bytes // FLOAT_BYTES // world.size, device=world.device)

    # An older torch has them under the second name only, a newer one deprecates it.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = (
        getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    )

    def all_reduce() -> None:
        distributed.all_reduce(whole)

    def all_gather() -> None:
        gather(whole, share)

    def reduce_scatter() -> None:
        scatter(share, whole)

    return {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}[
        collective
    ]


def repeat(world: World, run: Callable[[], None], seconds: float) -> list[float]:
    """Return the seconds of each repetition of *run*; as many on every rank, in about *seconds*."""
    world.barrier()
    warm_up = timed(run, world.clock(), WARM_UP)
    slowest = world.largest(statistics.median(warm_up))
    return timed(run, world.clock(), repetitions_in(seconds, slowest))

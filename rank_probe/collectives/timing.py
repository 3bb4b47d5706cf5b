"""Times the three collectives over all sizes, and counts their bandwidth as nccl-tests does.

The source is https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size S of an
operation is the size of the whole array in bytes: what each rank reduces in an all-reduce, what
each rank has received after an all-gather, what each rank puts into a reduce-scatter. A rank's own
share of the last two is S/n. With t seconds an operation,

    algorithm bandwidth = S/t
    bus bandwidth = S/t * factor,  2(n-1)/n for an all-reduce, (n-1)/n for the other two.

The bus bandwidth does not depend on the number of ranks n, so it compares with the hardware's peak.

Only warm-up begins with a barrier. A collective of these three ends on a rank only after every rank
has begun it, so repetitions that follow one another keep the ranks together by themselves; a
barrier between them would be timed too, or would give ranks different starts. Each repetition has
a time of its own, so that the median leaves out the few that something else held up.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from rank_probe.collectives.world import World

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]

COLLECTIVES: Final[tuple[Collective, ...]] = ("all_reduce", "all_gather", "reduce_scatter")
# nccl-tests rounds a rank's share down to this many bytes, which NCCL's widest loads need.
ALIGNMENT_BYTES: Final = 16
FLOAT_BYTES: Final = 4
SMALLEST_BYTES: Final = 4 * 2**10
SIZE_FACTOR: Final = 4
WARM_UP: Final = 3
FEWEST: Final = 5
MOST: Final = 2000


class CollectiveTime(NamedTuple):
    """Seconds of one collective at one size: median and quartiles over repetitions.

    Each is the mean over ranks, as nccl-tests averages its time over ranks.
    """

    collective: Collective
    size_bytes: int
    seconds: float
    q1_seconds: float
    q3_seconds: float
    repetitions: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second of the whole array."""
        return self.size_bytes / self.seconds

    def bus_bandwidth(self, ranks: int) -> float:
        """Return bytes per second over the slowest link of an ideal algorithm."""
        transfers = 2 if self.collective == "all_reduce" else 1
        return self.algorithm_bandwidth * transfers * (ranks - 1) / ranks


def whole_size(size_bytes: int, ranks: int) -> int:
    """Return the largest size up to *size_bytes* that *ranks* can share equally; at least one."""
    return max(size_bytes // ranks // ALIGNMENT_BYTES, 1) * ALIGNMENT_BYTES * ranks


def sizes_up_to(largest: int, ranks: int) -> list[int]:
    """Return the sizes up to *largest* that *ranks* can share equally; at least one."""
    found, size = [], min(SMALLEST_BYTES, largest)
    while size <= largest:
        found.append(whole_size(size, ranks))
        size *= SIZE_FACTOR
    return list(dict.fromkeys(found))


def time_collectives(world: World, sizes: Sequence[int], seconds: float) -> list[CollectiveTime]:
    """Return the time of each collective at each size; each takes *seconds*, on every rank."""
    mine = list(_my_times(world, sizes, seconds))
    world.says("the exchange of the collectives' times")
    every_rank = [[CollectiveTime(*fields) for fields in times] for times in world.exchange(mine)]
    return [_mean(at_once) for at_once in zip(*every_rank, strict=True)]


def _mean(ranks: Sequence[CollectiveTime]) -> CollectiveTime:
    return ranks[0]._replace(
        seconds=statistics.fmean(one.seconds for one in ranks),
        q1_seconds=statistics.fmean(one.q1_seconds for one in ranks),
        q3_seconds=statistics.fmean(one.q3_seconds for one in ranks),
    )


def _my_times(world: World, sizes: Sequence[int], seconds: float) -> Iterator[CollectiveTime]:
    for collective in COLLECTIVES:
        for size_bytes in sizes:
            world.says(f"{collective} of {size_bytes} bytes")
            times = repeat(world, operation(world, collective, size_bytes), seconds)
            low, median, high = statistics.quantiles(times, n=4)
            yield CollectiveTime(collective, size_bytes, median, low, high, len(times))


def operation(world: World, collective: Collective, size_bytes: int) -> Callable[[], object]:
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
    match collective:
        case "all_reduce":
            return lambda: distributed.all_reduce(whole)
        case "all_gather":
            return lambda: gather(whole, share)
        case "reduce_scatter":
            return lambda: scatter(share, whole)


def repeat(world: World, run: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of each repetition of *run*; as many on every rank, in about *seconds*."""
    world.barrier()
    slowest = world.largest(statistics.median(timed(run, WARM_UP, world.on_gpu)))
    return timed(run, repetitions_in(seconds, slowest), world.on_gpu)


def repetitions_in(seconds: float, once_seconds: float) -> int:
    """Return how often an operation of *once_seconds* is repeated in about *seconds*."""
    return min(max(math.ceil(seconds / max(once_seconds, 1e-9)), FEWEST), MOST)


def timed(operation: Callable[[], object], repetitions: int, on_gpu: bool) -> list[float]:
    """Return the seconds of each repetition of *operation*.

    gloo's calls block until they are done, so the host's clock tells. NCCL's only enqueue, so with
    *on_gpu* CUDA events on the current stream tell; it waits for them at the end.
    """
    if not on_gpu:
        marks = [time.perf_counter()]
        for _ in range(repetitions):
            operation()
            marks.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks)]
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]
    events[0].record()
    for event in events[1:]:
        operation()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]

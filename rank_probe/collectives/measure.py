"""Times the three collectives over all sizes, and messages between all pairs of ranks.

Sizes and bandwidths are those of nccl-tests,
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size S of an operation is
the size of the whole array in bytes: what each rank reduces in an all-reduce, what each rank has
received after an all-gather, what each rank puts into a reduce-scatter. A rank's own share of the
last two is S/n. With t seconds an operation and n ranks,

    bus bandwidth = S/t * factor,  2(n-1)/n for an all-reduce, (n-1)/n for the other two.

It does not depend on the number of ranks, so it compares with the hardware's peak.

In the first pass the pairs of a round run at once, and share what they share. Before something is
named as slow, it is measured again, alone on the machine: one pair runs at a time, doubtful and
other pairs in turn, three times. The fastest of its times counts for each: a slow link is slow
every time, while a pair that was held up is fast once. Only these times are judged. Where they
show something slow, two more such passes must show it too.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from rank_probe.collectives.verdict import (
    Finding,
    Measure,
    Pair,
    PairTime,
    SlowReading,
    doubtful,
    findings,
    scope_of,
    slow_readings,
)
from rank_probe.collectives.world import World

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]
# Pairs that have no rank in common.
Round = tuple[Pair, ...]

COLLECTIVES: Final[tuple[Collective, ...]] = ("all_reduce", "all_gather", "reduce_scatter")
# Beyond this, host memory and loopback are measured for minutes, and nothing new is learned.
LARGEST_BYTES: Final = {"nccl": 256 * 2**20, "gloo": 16 * 2**20}
SMALLEST_BYTES: Final = 4 * 2**10
SIZE_FACTOR: Final = 4
# nccl-tests rounds a rank's share down to this many bytes, which NCCL's widest loads need.
ALIGNMENT_BYTES: Final = 16
FLOAT_BYTES: Final = 4
# Between two ranks: what tells the latency, and the part of the largest array for the bandwidth.
SMALL_BYTES: Final = 8
MESSAGE_PART: Final = 4
WARM_UP: Final = 3
FEWEST: Final = 5
MOST: Final = 2000
TIMES: Final = 3
PASSES: Final = 3
# Up to here all pairs are measured again: those of eight ranks.
MOST_IN_FULL: Final = 28
MOST_DOUBTFUL: Final = 24
# Of each rank that has a doubtful pair, so that it is known how fast it can be.
CONTROLS_OF_A_RANK: Final = 2


class CollectiveTime(NamedTuple):
    """Seconds of one collective at one size: the median over repetitions, the mean over ranks."""

    collective: Collective
    size_bytes: int
    seconds: float

    def bus_bandwidth(self, ranks: int) -> float:
        """Return bytes per second over the slowest link of an ideal algorithm."""
        transfers = 2 if self.collective == "all_reduce" else 1
        return self.size_bytes / self.seconds * transfers * (ranks - 1) / ranks


class MeasuredLinks(NamedTuple):
    """All that was measured; *named* is empty if nothing stands out.

    *message_bytes* is the size of the large messages between two ranks. *again* has the pairs that
    were measured a second time, alone, because some might be slow.
    """

    backend: str
    hosts: tuple[str, ...]
    message_bytes: int
    collectives: Sequence[CollectiveTime]
    pairs: Sequence[PairTime]
    again: Sequence[PairTime]
    named: Sequence[Finding]

    @property
    def best(self) -> list[PairTime]:
        """One time for each pair, by its ranks: from the second pass, as far as there is one."""
        found = {one.pair: one for one in (*self.pairs, *self.again)}
        return [one for _, one in sorted(found.items())]


def measure(world: World, seconds: float, largest_bytes: int) -> MeasuredLinks:
    """Return the result, on every rank; half of *seconds* for collectives, half for pairs.

    What is measured again takes up to half of that more in each pass.
    """
    sizes, message = sizes_up_to(largest_bytes, world.size), largest_bytes // MESSAGE_PART
    collectives = time_collectives(world, sizes, seconds / 2)
    meetings = rounds(world.size)
    pairs = time_rounds(world, meetings, message, seconds / 2 / len(meetings))
    # In turn, so that a spell of noise does not meet all readings of one pair.
    turns = [(pair,) for _ in range(TIMES) for pair in to_repeat(pairs, world.hosts)]
    each = seconds / 4 / max(len(turns), len(meetings))
    readings: list[PairTime] = []
    slow: list[SlowReading] = []
    for _ in range(PASSES if turns else 0):
        readings += time_rounds(world, turns, message, each)
        # Every rank has the same readings, and comes to the same end.
        slow = slow_readings(fastest(readings), world.hosts, noise(readings))
        if not slow:
            break
    named = findings(slow, world.hosts)
    again = fastest(readings)
    return MeasuredLinks(world.backend, world.hosts, message, collectives, pairs, again, named)


def sizes_up_to(largest: int, ranks: int) -> list[int]:
    """Return the sizes up to *largest* that *ranks* can share equally; at least one."""
    smallest_share, size = ALIGNMENT_BYTES * ranks, min(SMALLEST_BYTES, largest)
    found = []
    while size <= largest:
        found.append(max(size // smallest_share, 1) * smallest_share)
        size *= SIZE_FACTOR
    return list(dict.fromkeys(found))


def time_collectives(world: World, sizes: Sequence[int], seconds: float) -> list[CollectiveTime]:
    """Return the time of each collective at each size, measured in *seconds* in all.

    Only warm-up begins with a barrier. A collective of these three ends on a rank only after every
    rank has begun it, so repetitions that follow one another keep the ranks together by themselves;
    a barrier between them would be timed too, or would give ranks different starts.
    """
    measured = [(collective, size) for collective in COLLECTIVES for size in sizes]
    mine = []
    for collective, size_bytes in measured:
        world.begins(f"{collective} of {size_bytes} bytes")
        run = operation(world, collective, size_bytes)
        world.barrier()
        slowest = world.largest(statistics.median(timed(run, WARM_UP, world.on_gpu)))
        times = timed(run, repetitions_in(seconds / len(measured), slowest), world.on_gpu)
        mine.append(statistics.median(times))
    world.begins("the exchange of the collectives' times")
    by_operation = zip(*world.exchange(mine), strict=True)
    return [
        CollectiveTime(*what, statistics.fmean(ranks))
        for what, ranks in zip(measured, by_operation, strict=True)
    ]


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


def rounds(ranks: int) -> list[Round]:
    """Return each pair once, in as few rounds as a round-robin tournament has (circle method)."""
    players = [*range(ranks), *([-1] if ranks % 2 else [])]  # Who meets -1 has a round off.
    found: list[Round] = []
    for _ in range(len(players) - 1):
        meet = zip(players[: len(players) // 2], reversed(players), strict=False)
        found.append(tuple((min(a, b), max(a, b)) for a, b in meet if -1 not in (a, b)))
        players.insert(1, players.pop())
    return found


def time_rounds(
    world: World, rounds: Iterable[Round], message_bytes: int, round_seconds: float
) -> list[PairTime]:
    """Return the times of all pairs. Those of a round are measured at once; a barrier ends it."""
    mine: list[PairTime] = []
    for pairs in rounds:
        pair = next((each for each in pairs if world.rank in each), None)
        if pair is None:
            world.begins("the wait for other pairs")
        else:
            world.begins(f"the exchange between ranks {pair[0]} and {pair[1]}")
            mine += _time_pair(world, pair, message_bytes, round_seconds)
        world.barrier()
    world.begins("the exchange of the pairs' times")
    return [PairTime(*fields) for times in world.exchange(mine) for fields in times]


def _time_pair(world: World, pair: Pair, message_bytes: int, seconds: float) -> list[PairTime]:
    """Return the times of *pair* on its first rank, which decides and times; the second follows.

    What counts is the first decile of the repetitions, because a slow link holds up every message.
    The median would also tell how busy the hosts are.
    """
    import torch
    from torch.distributed import recv, send

    leads = world.rank == pair[0]
    peer = pair[1] if leads else pair[0]
    small, large = (
        torch.zeros(size, dtype=torch.uint8, device=world.device)
        for size in (SMALL_BYTES, message_bytes)
    )

    def seconds_of(there: Any, back: Any) -> float:
        def message_and_answer() -> None:
            if leads:
                send(there, peer)
                recv(back, peer)
            else:
                recv(there, peer)
                send(back, peer)

        once = statistics.median(timed(message_and_answer, WARM_UP, world.on_gpu))
        agreed = torch.tensor([repetitions_in(seconds / 3, once)], device=world.device)
        (send if leads else recv)(agreed, peer)
        times = timed(message_and_answer, int(agreed.item()), world.on_gpu)
        return sorted(times)[len(times) // 10]

    latency = seconds_of(small, small) / 2
    there = message_bytes / one_way(seconds_of(large, small), latency)
    back = message_bytes / one_way(seconds_of(small, large), latency)
    return [PairTime(*pair, latency, there, back)] if leads else []


def one_way(seconds: float, latency_seconds: float) -> float:
    """Return what of *seconds* there and back a large message took; half or more in any case.

    A latency that was measured while something held the ranks up may be longer than all of it.
    """
    return max(seconds - latency_seconds, seconds / 2)


def to_repeat(times: Sequence[PairTime], hosts: Sequence[str]) -> list[Pair]:
    """Return the doubtful pairs, and others to compare them with; nothing if there is no doubt."""
    doubts = doubtful(times, hosts)
    if not doubts or len(times) <= MOST_IN_FULL:
        return [one.pair for one in times] if doubts else []
    found = dict.fromkeys(doubts[:MOST_DOUBTFUL])
    certain = {one.pair for one in times} - set(doubts)
    others = sorted(
        (one for one in times if one.pair in certain), key=lambda one: one.latency_seconds
    )
    for pair in list(found):
        for rank in pair:
            like = [
                one.pair
                for one in others
                if rank in one.pair and scope_of(one.pair, hosts) == scope_of(pair, hosts)
            ]
            found |= dict.fromkeys(like[:CONTROLS_OF_A_RANK])
    return list(found)


def noise(readings: Sequence[PairTime]) -> dict[Measure, float]:
    """Return by which factor a reading is slower than the best of its pair, for most pairs.

    It is that of the median reading, and of the median pair: few pairs are slow now and then.
    """
    latency, bandwidth = [], []
    median = statistics.median
    for own in _by_pair(readings):
        best, usual = _combined(own, min, max), _combined(own, median, median)
        latency.append(usual.latency_seconds / best.latency_seconds)
        bandwidth += [best.there / usual.there, best.back / usual.back]
    return {"latency": median(latency), "bandwidth": median(bandwidth)}


def fastest(readings: Iterable[PairTime]) -> list[PairTime]:
    """Return one time for each pair: the best of each of its readings."""
    return [_combined(own, min, max) for own in _by_pair(readings)]


Choice = Callable[[Iterable[float]], float]


def _combined(own: Sequence[PairTime], latency: Choice, bandwidth: Choice) -> PairTime:
    return PairTime(
        *own[0].pair,
        latency(one.latency_seconds for one in own),
        bandwidth(one.there for one in own),
        bandwidth(one.back for one in own),
    )


def _by_pair(readings: Iterable[PairTime]) -> Iterable[list[PairTime]]:
    found: dict[Pair, list[PairTime]] = {}
    for one in readings:
        found.setdefault(one.pair, []).append(one)
    return found.values()

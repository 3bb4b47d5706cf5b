"""Times the three collectives over all sizes, and messages between all pairs of ranks.

docs/collectives.md defines the sizes and bandwidths, which are those of nccl-tests.

In the first pass the pairs of a round run at once and share resources. Before anything is named as
slow, doubtful and other pairs take turns, one pair at a time, three times. The fastest time of each
pair counts: a slow link is slow every time, while a pair that was held up is fast once. Only these
times are judged. If they show something slow, two more passes must confirm it.
"""

import math
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, distributed

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
from rank_probe.process.identity import Identity

# How many times each moves the whole array over the slowest link, with many ranks.
COLLECTIVES: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
# Beyond this, host memory and loopback take minutes and show nothing new.
LARGEST_BYTES: Final = {"nccl": 256 * 2**20, "gloo": 16 * 2**20}
SMALLEST_BYTES: Final = 4 * 2**10
SIZE_FACTOR: Final = 4
# nccl-tests rounds a rank's share down to this many bytes, which NCCL's widest loads need.
ALIGNMENT_BYTES: Final = 16
FLOAT_BYTES: Final = 4
# Messages between two ranks: bytes for latency; for bandwidth, the largest array divided by this.
SMALL_BYTES: Final = 8
MESSAGE_PART: Final = 4
WARM_UP: Final = 3
FEWEST: Final = 5
MOST: Final = 2000
TIMES: Final = 3
PASSES: Final = 3
# With up to this many pairs (eight ranks), all pairs are measured again.
MOST_IN_FULL: Final = 28
MOST_DOUBTFUL: Final = 24
# Other pairs to repeat for each rank of a doubtful pair, to show how fast the rank can be.
CONTROLS_OF_A_RANK: Final = 2


@dataclass(slots=True)
class World:
    """All ranks, as one of them sees them.

    *begins* is called with the name of each step. *hosts* has the host of each rank, by rank.
    """

    rank: int
    size: int
    backend: str
    device: torch.device
    begins: Callable[[str], None]
    hosts: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether operations are enqueued on a CUDA stream."""
        return self.backend == "nccl"

    def barrier(self) -> None:
        """Wait for all ranks in a collective that releases them within microseconds."""
        self.largest(0.0)

    def largest(self, value: float) -> float:
        """Return the largest *value* of all ranks."""
        tensor = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return float(tensor.item())

    def exchange(self, mine: Any) -> list[Any]:
        """Return every rank's *mine*, in rank order; all ranks get the same list."""
        given = [None] * self.size
        distributed.all_gather_object(given, mine)
        return given


@contextmanager
def joined(
    me: Identity, backend: str, timeout_seconds: float, begins: Callable[[str], None]
) -> Iterator[World]:
    """Select the device, meet the other ranks, and create the process group to measure."""
    device = torch.device("cpu")
    if backend == "nccl":
        local_rank = int(me.local_rank) if me.local_rank.isdecimal() else 0
        # A launcher may show each rank its own GPU only.
        device = torch.device("cuda", 0 if torch.cuda.device_count() == 1 else local_rank)
        begins(f"the choice of GPU {device.index}, of {torch.cuda.device_count()}")
        torch.cuda.set_device(device)
    world = World(me.rank, me.world_size, backend, device, begins)
    begins("the ranks' search for one another")
    os.environ |= {"RANK": str(me.rank), "WORLD_SIZE": str(me.world_size)}
    # Longer than the watchdog's timeout, which ends with a readable message.
    distributed.init_process_group(backend, timeout=timedelta(seconds=2 * timeout_seconds))
    world.hosts = tuple(world.exchange(socket.gethostname()))
    yield world
    # Rank 0 may host the store, so it stays until all ranks get here.
    begins("the end")
    world.barrier()
    distributed.destroy_process_group()


class CollectiveTime(NamedTuple):
    """Seconds of one collective at one size: the median over repetitions, the mean over ranks."""

    collective: str
    size_bytes: int
    seconds: float

    def bus_bandwidth(self, ranks: int) -> float:
        """Return bytes per second over the slowest link of an ideal algorithm."""
        transfers = COLLECTIVES[self.collective] * (ranks - 1) / ranks
        return self.size_bytes / self.seconds * transfers


class MeasuredLinks(NamedTuple):
    """All that was measured; *named* is empty if nothing stands out.

    *message_bytes* is the size of the large messages between two ranks. *pairs* has one time for
    each, *measured_again* says how many were measured again, alone, because some might be slow.
    """

    backend: str
    hosts: tuple[str, ...]
    message_bytes: int
    collectives: Sequence[CollectiveTime]
    pairs: Sequence[PairTime]
    measured_again: int
    named: Sequence[Finding]


def measure(world: World, seconds: float, largest_bytes: int) -> MeasuredLinks:
    """Return the result, on every rank; half of *seconds* for collectives, half for pairs.

    Each pass that repeats pairs adds up to a quarter of *seconds*.
    """
    sizes, message = sizes_up_to(largest_bytes, world.size), largest_bytes // MESSAGE_PART
    collectives = time_collectives(world, sizes, seconds / 2)
    meetings = rounds(world.size)
    pairs = time_rounds(world, meetings, message, seconds / 2 / len(meetings))
    # Interleaved, so that a burst of noise does not hit all readings of one pair.
    again = to_repeat(pairs, world.hosts)
    turns = [(pair,) for _ in range(TIMES) for pair in again]
    each = seconds / 4 / max(len(turns), len(meetings))
    readings: list[PairTime] = []
    slow: list[SlowReading] = []
    for _ in range(PASSES if turns else 0):
        readings += time_rounds(world, turns, message, each)
        # Every rank has the same readings and reaches the same decision.
        slow = slow_readings(fastest(readings), world.hosts, noise(readings))
        if not slow:
            break
    best = sorted({one.ranks: one for one in (*pairs, *fastest(readings))}.values())
    named = findings(slow, world.hosts)
    return MeasuredLinks(world.backend, world.hosts, message, collectives, best, len(again), named)


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
    by_operation = zip(*world.exchange(mine), strict=True)
    return [
        CollectiveTime(*what, statistics.fmean(ranks))
        for what, ranks in zip(measured, by_operation, strict=True)
    ]


def operation(world: World, collective: str, size_bytes: int) -> Callable[[], object]:
    """Return a function that runs *collective* once over the default process group."""
    # Zeros: the sum of any number of repetitions in place stays finite.
    whole = torch.zeros(size_bytes // FLOAT_BYTES, device=world.device)
    share = torch.zeros(size_bytes // FLOAT_BYTES // world.size, device=world.device)
    # Older torch has only the second name of each function; newer torch deprecates it.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = (
        getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    )
    run: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: distributed.all_reduce(whole),
        "all_gather": lambda: gather(whole, share),
        "reduce_scatter": lambda: scatter(share, whole),
    }
    return run[collective]


def repetitions_in(seconds: float, once_seconds: float) -> int:
    """Return how often an operation of *once_seconds* is repeated in about *seconds*."""
    return min(max(math.ceil(seconds / max(once_seconds, 1e-9)), FEWEST), MOST)


def timed(operation: Callable[[], object], repetitions: int, on_gpu: bool) -> list[float]:
    """Return the seconds of each repetition of *operation*.

    gloo's calls block until they are done, so the host clock times them. NCCL's calls only enqueue,
    so with *on_gpu* CUDA events on the current stream time them; `timed` waits for the last event.
    """
    if not on_gpu:
        marks = [time.perf_counter()]
        for _ in range(repetitions):
            operation()
            marks.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]
    events[0].record()
    for event in events[1:]:
        operation()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def rounds(ranks: int) -> list[list[Pair]]:
    """Return each pair once, in as few rounds as a round-robin tournament has (circle method)."""
    players = [*range(ranks), *([-1] if ranks % 2 else [])]  # A rank paired with -1 sits out.
    found = []
    for _ in range(len(players) - 1):
        meet = zip(players[: len(players) // 2], reversed(players), strict=False)
        found.append([(min(a, b), max(a, b)) for a, b in meet if -1 not in (a, b)])
        players.insert(1, players.pop())
    return found


def time_rounds(
    world: World, rounds: Iterable[Sequence[Pair]], message_bytes: int, round_seconds: float
) -> list[PairTime]:
    """Return the times of all pairs; those of a round run at once, and a barrier ends it."""
    mine: list[PairTime] = []
    for pairs in rounds:
        for pair in pairs:
            if world.rank in pair:
                world.begins(f"the exchange between ranks {pair[0]} and {pair[1]}")
                mine += _time_pair(world, pair, message_bytes, round_seconds)
        world.begins("the wait for other pairs")
        world.barrier()
    return [one for times in world.exchange(mine) for one in times]


def _time_pair(world: World, pair: Pair, message_bytes: int, seconds: float) -> list[PairTime]:
    """Return the times of *pair* on its first rank, which decides and times; the second follows.

    Each time is the first decile of the repetitions, because a slow link holds up every message.
    The median would also depend on how busy the hosts are.
    """
    leads = world.rank == pair[0]
    peer = pair[1] if leads else pair[0]
    first: Callable[[Tensor, int], object] = distributed.send if leads else distributed.recv
    second: Callable[[Tensor, int], object] = distributed.recv if leads else distributed.send
    small, large = (
        torch.zeros(size, dtype=torch.uint8, device=world.device)
        for size in (SMALL_BYTES, message_bytes)
    )

    def seconds_of(there: Tensor, back: Tensor) -> float:
        def message_and_answer() -> None:
            first(there, peer)
            second(back, peer)

        once = statistics.median(timed(message_and_answer, WARM_UP, world.on_gpu))
        agreed = torch.tensor([repetitions_in(seconds / 3, once)], device=world.device)
        first(agreed, peer)
        times = timed(message_and_answer, int(agreed.item()), world.on_gpu)
        return sorted(times)[len(times) // 10]

    latency = seconds_of(small, small) / 2
    both_ways = seconds_of(large, small), seconds_of(small, large)
    # A latency measured while the ranks were held up may exceed the whole time, hence the floor.
    there, back = (message_bytes / max(each - latency, each / 2) for each in both_ways)
    return [PairTime(pair, latency, there, back)] if leads else []


def to_repeat(times: Sequence[PairTime], hosts: Sequence[str]) -> list[Pair]:
    """Return the doubtful pairs, and others to compare them with; nothing if there is no doubt."""
    doubts = doubtful(times, hosts)
    if not doubts or len(times) <= MOST_IN_FULL:
        return [one.ranks for one in times] if doubts else []
    found = dict.fromkeys(doubts[:MOST_DOUBTFUL])
    doubted = set(doubts)
    others = sorted((one.latency_seconds, one.ranks) for one in times if one.ranks not in doubted)
    for pair in list(found):
        scope = scope_of(pair, hosts)
        for rank in pair:
            like = [one for _, one in others if rank in one and scope_of(one, hosts) == scope]
            found |= dict.fromkeys(like[:CONTROLS_OF_A_RANK])
    return list(found)


def noise(readings: Sequence[PairTime]) -> dict[Measure, float]:
    """Return the factor by which a typical reading is slower than the best of its pair.

    It is the median over pairs of each pair's median: the few pairs that vary do not raise it.
    """
    of_latency, of_bandwidth = [], []
    for _, latency, there, back in _by_pair(readings):
        of_latency.append(statistics.median(latency) / min(latency))
        of_bandwidth += [max(each) / statistics.median(each) for each in (there, back)]
    return {
        "latency": statistics.median(of_latency),
        "bandwidth": statistics.median(of_bandwidth),
    }


def fastest(readings: Iterable[PairTime]) -> list[PairTime]:
    """Return one time for each pair: the best of each of its readings."""
    return [
        PairTime(ranks[0], min(latency), max(there), max(back))
        for ranks, latency, there, back in _by_pair(readings)
    ]


def _by_pair(readings: Iterable[PairTime]) -> list[list[tuple[Any, ...]]]:
    """Return the readings of each pair, field by field."""
    found: dict[Pair, list[PairTime]] = {}
    for one in readings:
        found.setdefault(one.ranks, []).append(one)
    return [list(zip(*own, strict=True)) for own in found.values()]

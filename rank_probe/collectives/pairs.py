"""Which pairs of ranks are measured, and the times of messages between two of them.

A message goes there and back, small, and large in each direction. What counts is the first decile
of the repetitions, because a slow link holds up every message. The median would also tell how busy
the hosts are.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from rank_probe.collectives.timing import WARM_UP, repetitions_in, timed
from rank_probe.collectives.world import World

# The lower rank first.
Pair = tuple[int, int]
Round = tuple[Pair, ...]

# Up to here every pair is measured: 31 rounds.
MOST_RANKS_IN_FULL: Final = 32
SMALL_BYTES: Final = 8
# A link that is too slow for the message gets a smaller one, down to this.
PROBE_BYTES: Final = 64 * 2**10
# A message may take this share of the pair's time, so that a few fit, or this long.
SHARE: Final = 0.2
MESSAGE_SECONDS: Final = 0.05


class PairTime(NamedTuple):
    """What *first* measured with *second*, both ranks: first deciles over repetitions.

    *latency_seconds* is half of the time there and back of a small message. *there* and *back* are
    bytes per second of messages of *message_bytes*, from first to second and from second to first,
    less the latency of the small message that goes the other way.
    """

    first: int
    second: int
    latency_seconds: float
    there: float
    back: float
    message_bytes: int

    @property
    def pair(self) -> Pair:
        """Both ranks."""
        return self.first, self.second


def rounds(ranks: int) -> list[Round]:
    """Return rounds of disjoint pairs: all pairs of a small world, at most n*log2(n) of a large."""
    return tournament(ranks) if ranks <= MOST_RANKS_IN_FULL else disjoint(sampled(ranks))


def tournament(ranks: int) -> list[Round]:
    """Return each pair once, in as few rounds as a round-robin tournament has (circle method)."""
    players = [*range(ranks), *([-1] if ranks % 2 else [])]  # Who meets -1 has a round off.
    found: list[Round] = []
    for _ in range(len(players) - 1):
        meet = zip(players[: len(players) // 2], reversed(players), strict=False)
        found.append(tuple(_ordered(a, b) for a, b in meet if -1 not in (a, b)))
        players.insert(1, players.pop())
    return [each for each in found if each]


def sampled(ranks: int) -> list[Pair]:
    """Return the pairs at distances 1, 2, 4 and so on, around the ring of all ranks.

    Each rank has about 2*log2(n) partners near and far, so a slow rank or node shows in many pairs.
    A single slow link shows only if it is among these pairs.
    """
    distances = [2**power for power in range((ranks // 2).bit_length())]
    found = {_ordered(rank, (rank + far) % ranks) for far in distances for rank in range(ranks)}
    return sorted(found, key=lambda pair: (pair[1] - pair[0], pair))


def disjoint(pairs: Iterable[Pair]) -> list[Round]:
    """Put each pair into the first round in which neither of its ranks is busy."""
    found: list[tuple[list[Pair], set[int]]] = []
    for pair in pairs:
        free = next((each for each in found if each[1].isdisjoint(pair)), None)
        if free is None:
            found.append(free := ([], set()))
        free[0].append(pair)
        free[1].update(pair)
    return [tuple(each) for each, _ in found]


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def time_rounds(
    world: World, rounds: Iterable[Round], message_bytes: int, round_seconds: float
) -> list[PairTime] | None:
    """Return the times of all pairs on rank 0, None on the others; every rank takes part.

    The pairs of a round have no rank in common and are measured at once. A barrier ends each round.
    """
    found = []
    for pairs in rounds:
        mine = next((pair for pair in pairs if world.rank in pair), None)
        if mine is None:
            world.says("the wait for other pairs")
        else:
            world.says(f"the exchange between ranks {mine[0]} and {mine[1]}")
            times = _Pairing(world, mine, round_seconds).measure(message_bytes)
            found += [times] if world.rank == mine[0] else []
        world.barrier()
    world.says("the gathering of the pairs' times")
    every_rank = world.gather(found)
    return every_rank and [PairTime(*fields) for times in every_rank for fields in times]


class _Pairing:
    """One of the two ranks of a pair. The first decides and times, the second follows."""

    def __init__(self, world: World, pair: Pair, seconds: float) -> None:
        self._world, self._pair, self._seconds = world, pair, seconds / 3
        self._leads = world.rank == pair[0]
        self._peer = pair[1] if self._leads else pair[0]

    def measure(self, message_bytes: int) -> PairTime:
        """Return the times; those of the second rank mean nothing."""
        small, probe = self._buffer(SMALL_BYTES), self._buffer(PROBE_BYTES)
        latency = self._seconds_of(small, small) / 2
        slowest = max(self._once(probe, small), self._once(small, probe)) - 2 * latency
        size = int(self._agree(fitting(message_bytes, slowest, self._seconds)))
        large = self._buffer(size)
        there = size / one_way(self._seconds_of(large, small), latency)
        back = size / one_way(self._seconds_of(small, large), latency)
        return PairTime(*self._pair, latency, there, back, size)

    def _seconds_of(self, there: Any, back: Any) -> float:
        run = self._there_and_back(there, back)
        once = statistics.median(timed(run, WARM_UP, self._world.on_gpu))
        repetitions = int(self._agree(repetitions_in(self._seconds, once)))
        return first_decile(timed(run, repetitions, self._world.on_gpu))

    def _once(self, there: Any, back: Any) -> float:
        return min(timed(self._there_and_back(there, back), 2, self._world.on_gpu))

    def _there_and_back(self, there: Any, back: Any) -> Callable[[], None]:
        from torch.distributed import recv, send

        def lead() -> None:
            send(there, self._peer)
            recv(back, self._peer)

        def follow() -> None:
            recv(there, self._peer)
            send(back, self._peer)

        return lead if self._leads else follow

    def _agree(self, value: float) -> float:
        """Return the first rank's *value* on both."""
        import torch
        from torch.distributed import recv, send

        tensor = torch.tensor([value], dtype=torch.float64, device=self._world.device)
        (send if self._leads else recv)(tensor, self._peer)
        return float(tensor.item())

    def _buffer(self, size: int) -> Any:
        import torch

        return torch.zeros(size, dtype=torch.uint8, device=self._world.device)


def first_decile(seconds: Sequence[float]) -> float:
    """Return the value that a tenth of *seconds* does not exceed; of fewer than ten the least."""
    return sorted(seconds)[len(seconds) // 10]


def one_way(seconds: float, latency_seconds: float) -> float:
    """Return what of *seconds* there and back a large message took; half or more in any case.

    A latency that was measured while something held the ranks up may be longer than all of it.
    """
    return max(seconds - latency_seconds, seconds / 2)


def fitting(message_bytes: int, probe_seconds: float, seconds: float) -> int:
    """Return *message_bytes*, halved until one is short in view of *seconds*, or is PROBE_BYTES."""
    size, longest = message_bytes, max(seconds * SHARE, MESSAGE_SECONDS)
    while size > PROBE_BYTES and probe_seconds * size / PROBE_BYTES > longest:
        size //= 2
    return size

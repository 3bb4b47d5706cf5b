"""Times messages between two ranks: there and back, and large ones in each direction.

What counts is the first decile of the repetitions, because a slow link holds up every message. The
median would also tell how busy the hosts are.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rank_probe.collectives.measurements.rounds import Pair, Round
from rank_probe.collectives.measurements.timing import WARM_UP, repetitions_in, timed
from rank_probe.collectives.measurements.world import World

SMALL_BYTES: Final = 8
# A link that is too slow for the message gets a smaller one, down to this.
PROBE_BYTES: Final = 64 * 2**10
# A message may take this share of the pair's time, so that a few fit, or this long.
SHARE: Final = 0.2
MESSAGE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class PairTime:
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


def time_rounds(
    world: World, rounds: Iterable[Round], message_bytes: int, round_seconds: float
) -> list[PairTime]:
    """Return the times of the pairs in which this rank was first; every rank takes part.

    The pairs of a round have no rank in common and are measured at once. A barrier ends each round.
    """
    found = []
    for pairs in rounds:
        world.says(_words(world.rank, pairs))
        mine = next((pair for pair in pairs if world.rank in pair), None)
        if mine is not None:
            times = _Pairing(world, mine, round_seconds).measure(message_bytes)
            found += [times] if world.rank == mine[0] else []
        world.barrier()
    return found


def gathered(world: World, mine: Sequence[PairTime]) -> list[PairTime] | None:
    """Return the times of all pairs on rank 0; None on the others."""
    world.says("the gathering of the pairs' times")
    every_rank = world.gather(mine)
    return every_rank and [PairTime(**fields) for times in every_rank for fields in times]


class _Pairing:
    """One of the two ranks of a pair. The first decides and times, the second follows."""

    def __init__(self, world: World, pair: Pair, seconds: float) -> None:
        import torch
        from torch import distributed

        self._torch, self._distributed = torch, distributed
        self._world = world
        self._pair = pair
        self._seconds = seconds / 3
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
        once = statistics.median(timed(run, self._world.clock(), WARM_UP))
        repetitions = int(self._agree(repetitions_in(self._seconds, once)))
        return first_decile(timed(run, self._world.clock(), repetitions))

    def _once(self, there: Any, back: Any) -> float:
        return min(timed(self._there_and_back(there, back), self._world.clock(), 2))

    def _there_and_back(self, there: Any, back: Any) -> Callable[[], None]:
        send, receive, peer = self._distributed.send, self._distributed.recv, self._peer

        def lead() -> None:
            send(there, peer)
            receive(back, peer)

        def follow() -> None:
            receive(there, peer)
            send(back, peer)

        return lead if self._leads else follow

    def _agree(self, value: float) -> float:
        """Return the first rank's *value* on both."""
        tensor = self._torch.tensor([value], dtype=self._torch.float64, device=self._world.device)
        if self._leads:
            self._distributed.send(tensor, self._peer)
        else:
            self._distributed.recv(tensor, self._peer)
        return float(tensor.item())

    def _buffer(self, size: int) -> Any:
        return self._torch.zeros(size, dtype=self._torch.uint8, device=self._world.device)


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


def _words(rank: int, pairs: Round) -> str:
    mine = next((pair for pair in pairs if rank in pair), None)
    if mine is None:
        return "the wait for other pairs"
    return f"the exchange between ranks {mine[0]} and {mine[1]}"

"""Many simulated ranks of the join in one process, controlled over a pipe; see __main__.py.

ranks.py PORT RANKS NUMBER OF CONNECTIONS: this is process NUMBER of OF, and acts as the ranks
above 0 that are NUMBER modulo OF. Lines in: `post ROUND` (each rank posts its ring as of that
round) or `read` (each rank reads its result). Lines out: the seconds that it took.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from rank_probe.join.result import read_result
from rank_probe.join.ring import ROUNDS, STEPS_A_ROUND, Pace, StepRing, digest
from rank_probe.join.store import LIFE_KEY, KeysOfLife, PlaceInJob
from rank_probe.measure.vectors import StepVector
from rank_probe.wire.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC

PREFIX = "rankskew/0"
LATE_RANK = 1
MS = 1_000_000


def steps_of_round(number: int, late: bool) -> list[StepVector]:
    """Return the steps of round *number* (from 1) of a rank that may be *late*, in its data."""
    spent = [0] * len(STAGES)
    for stage in (OPTIMIZER, OTHER, DATA, FORWARD, BACKWARD):
        spent[stage] = 5 * MS
    spent[DATA if late else SYNC] += 40 * MS
    first = 1 + (number - 1) * STEPS_A_ROUND
    return [StepVector(step, 0, tuple(spent)) for step in range(first, first + STEPS_A_ROUND)]


def messages(ranks: int, number: int) -> tuple[bytes, bytes]:
    """Return the rings of a late and a healthy rank at round *number*."""
    period = PlaceInJob(0, ranks).period_seconds
    found = []
    for late in (True, False):
        ring = StepRing(Pace(period))
        for each in range(max(1, number - int(ROUNDS)), number + 1):
            ring.take(steps_of_round(each, late), each * period)
        found.append(ring.message(ranks, digest("all"), 0))
    return found[0], found[1]


def main() -> None:
    """Carry out commands until the pipe is closed."""
    port, ranks, number, of, connections = map(int, sys.argv[1:])
    own = [rank for rank in range(1, ranks) if rank % of == number]
    stores: list[Any] = [
        PrefixStore(PREFIX, TCPStore("127.0.0.1", port, wait_for_workers=False))
        for _ in range(connections)
    ]

    def life(store: Any) -> KeysOfLife:
        """Return the keys of the life that rank 0 has begun."""
        return KeysOfLife(store, store.multi_get([LIFE_KEY])[0].decode().partition(" ")[0])

    def post(store: Any, mine: list[int], late: bytes, healthy: bytes) -> None:
        for rank in mine:
            store.set(f"steps/{rank}", late if rank == LATE_RANK else healthy)
        store.check([f"steps/{mine[-1]}"])  # A set has no answer; this one follows all sets.

    def read(store: Any, mine: list[int]) -> None:
        for rank in mine:
            keys = [f"result/{rank}"]
            assert store.check(keys)
            assert read_result(store.multi_get(keys)[0]) is not None

    parts = [(store, own[each::connections]) for each, store in enumerate(stores)]
    with ThreadPoolExecutor(connections) as threads:
        for line in sys.stdin:
            command, *argument = line.split()
            both = messages(ranks, int(argument[0])) if argument else ()
            lives: list[tuple[Any, ...]] = [(life(s), mine) for s, mine in parts if mine]
            started = time.perf_counter()
            call: Any = post if command == "post" else read
            done = [threads.submit(call, *part, *both) for part in lives]
            for each in done:
                each.result()
            print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()

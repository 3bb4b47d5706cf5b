"""Many simulated ranks of the join in one process, controlled over a pipe; see __main__.py."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from rank_probe.join.result import read_result
from rank_probe.join.ring import ROUNDS, STEPS_A_ROUND, Pace, StepRing, digest
from rank_probe.join.store import LIFE_KEY, KeysOfLife, PlaceInJob
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, STAGES, SYNC

PREFIX = "rankskew/0"
LATE_RANK = 1
# The number of a round: each rank posts its ring as of then; None: each reads its result.
Command = int | None
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


def be_ranks(port: int, ranks: int, own: range, connections: int, parent: Connection) -> None:
    """Act as the ranks *own*: run the commands of *parent*, and report how long each took."""
    stores: list[Any] = [
        PrefixStore(PREFIX, TCPStore("127.0.0.1", port, wait_for_workers=False))
        for _ in range(connections)
    ]

    def life(store: Any) -> KeysOfLife:
        """Return the keys of the life that rank 0 has begun."""
        return KeysOfLife(store, store.multi_get([LIFE_KEY])[0].decode().partition(" ")[0])

    def post(store: Any, mine: Sequence[int], late: bytes, healthy: bytes) -> None:
        for rank in mine:
            store.set(f"steps/{rank}", late if rank == LATE_RANK else healthy)
        store.check([f"steps/{mine[-1]}"])  # A set has no answer; this answer follows all sets.

    def read(store: Any, mine: Sequence[int]) -> None:
        for rank in mine:
            keys = [f"result/{rank}"]
            assert store.check(keys)
            assert read_result(store.multi_get(keys)[0]) is not None

    parts = [(store, own[each::connections]) for each, store in enumerate(stores)]
    with ThreadPoolExecutor(connections) as threads:
        while True:
            command: Command = parent.recv()
            both = () if command is None else messages(ranks, command)
            call: Any = read if command is None else post
            lives: list[tuple[Any, ...]] = [(life(store), mine) for store, mine in parts if mine]
            started = time.perf_counter()
            for each in [threads.submit(call, *part, *both) for part in lives]:
                each.result()
            parent.send(time.perf_counter() - started)

"""What the per-step join costs: one store and rank 0 with up to 8,192 ranks, and live training.

The store is a real TCPStore in its own process. Two other processes act as all ranks but the first,
over 64 connections (ranks.py); each rank's ring is full, as in a fast loop, which is the most
that the join handles. Rank 0 is this process: its round runs in a thread, beside a main thread
that works without a pause, as training does. A round delays rank 0 by the work that its main thread
loses meanwhile; the round's CPU time is an upper bound of that.

Live: four gloo DDP ranks run blocks with and without the join in random order, with rounds at ten
times the real pace (live.py).
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from benchmarks.join.ranks import LATE_RANK, PREFIX, Command, be_ranks, steps_of_round
from benchmarks.report import Row, digits, measured_with, percent, quartiles, write
from devstack.load import beside
from generators.markdown import table
from rank_probe.join.result import read_result
from rank_probe.join.ring import STEPS_A_ROUND
from rank_probe.join.rounds import Rounds
from rank_probe.join.store import LIFE_KEY, PlaceInJob
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import Verdict
from rank_probe.measure.steps import Vectors
from rank_probe.process.identity import Identity
from rank_probe.wire.stages import DATA

HELPERS = 2
CONNECTIONS = 64
LIVE_RANKS = 4
WORLDS = (256, 2_048, 8_192)
ROUNDS = 5
BLOCKS, STEPS = 40, 40


def row(
    ranks: int, what: str, unit: str, values: Sequence[float], period: float | None = None
) -> dict[str, Any]:
    """Return a row of the result; *period* also gives *values*, in ms, as a share of a round."""
    found = quartiles(values)
    percent = None if period is None else found["median"] / (10 * period)
    return {"ranks": ranks, "what": what, "unit": unit} | found | {"% of a round": percent}


def together(helpers: Sequence[Connection], command: Command) -> float:
    """Run *command* in all *helpers*; return the milliseconds of the longest."""
    for helper in helpers:
        helper.send(command)
    return max(1e3 * float(helper.recv()) for helper in helpers)


def work() -> None:
    """Do a piece of a training's main thread: Python and small operations."""
    product = _MATRIX
    for _ in range(4):
        product = torch.mm(product, _MATRIX)
    sum(range(500))


_MATRIX = torch.eye(64)


class Beside:
    """Runs a function in a thread while this one works; results are in milliseconds.

    *late* is how long this thread slept meanwhile, which it does only to wait for the interpreter.
    Waiting for a CPU does not count, so the load of other programs does not either.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)  # The same thread each time, as in a rank.
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.late: list[float] = []

    def run(self, function: Callable[[], None]) -> None:
        """Measure a call of *function*."""
        started, awake = time.perf_counter(), awake_seconds()
        done = self._thread.submit(self._timed, function)
        while not done.done():
            work()
        done.result()
        awake = awake_seconds() - awake  # Inside `elapsed`, so that nothing can lie between.
        elapsed = time.perf_counter() - started
        self.wall.append(elapsed * 1e3)
        self.late.append((elapsed - awake) * 1e3)

    def _timed(self, function: Callable[[], None]) -> None:
        started = time.thread_time()
        function()
        self.cpu.append((time.thread_time() - started) * 1e3)


def awake_seconds() -> float:
    """Return how long the calling thread has run on a CPU or waited for one.

    schedstat's own figure for the former lags by up to a tick of the kernel's clock.
    """
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    waiting = int(path.read_text().split()[1])
    return time.thread_time() + waiting / 1e9


def world_rows(ranks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield what a round with *ranks* takes, in total and in rank 0."""
    place = PlaceInJob(0, ranks)
    kept = Vectors(lambda: None)
    me = Identity("bench", "all", 0, ranks, "0", "0", attempt=0)
    posts, reads, merges = [], [], Beside()
    with ExitStack() as stack:
        verdicts = stack.enter_context(timed_verdicts())
        port = stack.enter_context(store_process())
        helpers = []
        for number in range(HELPERS):
            here, there = Pipe()
            own = range(1 + number, ranks, HELPERS)
            stack.enter_context(beside(be_ranks, port, ranks, own, CONNECTIONS // HELPERS, there))
            helpers.append(here)
        store: Any = PrefixStore(PREFIX, TCPStore("127.0.0.1", port, wait_for_workers=False))
        merging = Rounds(store, place, kept, lambda: me, threading.Event())
        merging.enter()
        for number in range(1, rounds + 2):
            kept.waiting.extend(steps_of_round(number, late=False))
            post = together(helpers, number)
            now = number * place.period_seconds
            merges.run(lambda now=now: merging.run(now))  # type: ignore[misc]
            posts.append(post)
            reads.append(together(helpers, None))
        life = store.multi_get([LIFE_KEY])[0].decode().partition(" ")[0]
        told = store.multi_get([f"{life}/result/{LATE_RANK}"])[0]
    result = read_result(told)
    expected = (ranks - 1) * 0.04 * STEPS_A_ROUND * (rounds + 1)
    if result is None or abs(result.wait_caused_seconds[DATA] / expected - 1) > 1e-6:
        raise RuntimeError(f"{ranks} ranks: the late one was told {result}, not {expected} s")
    period = place.period_seconds
    for each in (posts, reads, merges.wall, merges.cpu, merges.late):
        del each[0]  # The first round includes imports, and its rings are not full.
    yield row(ranks, "all ranks post", "ms", posts)
    yield row(ranks, "rank 0: post, collect, merge, publish (wall)", "ms", merges.wall)
    yield row(ranks, "rank 0: the same, CPU of the thread", "ms", merges.cpu, period)
    yield row(ranks, "rank 0: of that, the judge", "ms", verdicts[-rounds:], period)
    yield row(ranks, "rank 0: its main thread waits for the interpreter", "ms", merges.late, period)
    yield row(ranks, "all ranks read", "ms", reads)


@contextmanager
def timed_verdicts() -> Iterator[list[float]]:
    """Yield the CPU time of each verdict while the block runs, in milliseconds."""
    spent: list[float] = []
    judge = Judge.judge

    def timed(*given: Any, **named: Any) -> Verdict:
        started = time.thread_time()
        verdict = judge(*given, **named)
        spent.append((time.thread_time() - started) * 1e3)
        return verdict

    with mock.patch.object(Judge, "judge", timed):
        yield spent


@contextmanager
def store_process() -> Iterator[int]:
    """Serve a store from its own process while the block runs; yields its port."""
    code = (
        "import sys; from torch.distributed import TCPStore; "
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False); "
        "print(store.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def live_rows(blocks: int, steps: int) -> Iterator[dict[str, Any]]:
    """Yield a step of live training without the join, and what the join adds to it."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(LIVE_RANKS)]
    job = ["-m", "benchmarks.join.live", str(blocks), str(steps)]
    done = subprocess.run(
        [sys.executable, *launcher, *job],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"live training failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    without = [pair[0] for pair in told["pairs"]]
    added = [1e3 * (pair[1] - pair[0]) for pair in told["pairs"]]
    yield row(LIVE_RANKS, "live: a step without the join", "ms", without)
    yield row(LIVE_RANKS, "live: added to a step, 5 rounds a second", "µs", added)


def table_of(result: Row) -> str:
    """Return the duration of a round of the join, and what it adds to live training."""
    cells = [
        (f"{row['ranks']:,}", row["what"], _spread(row), percent(row["% of a round"]))
        for row in result["rows"]
    ]
    header = ("ranks", "what", "median", "share of the time between rounds")
    return f"{measured_with(result)}\n\n{table(header, cells)}"


def _spread(row: Row) -> str:
    median, low, high = (digits(row[name]) for name in ("median", "q1", "q3"))
    return f"{median} {row['unit']} (quartiles {low} to {high})"


def main() -> None:
    """Measure and print."""
    rows = [each for ranks in WORLDS for each in world_rows(ranks, ROUNDS)]
    rows += live_rows(BLOCKS, STEPS)
    write("join", rows, packages=("torch",), tables={"join": table_of})


if __name__ == "__main__":
    main()

"""What the probe costs, compared with other tools on the same loop in the same run.

A figure "added to a step" is a paired difference: blocks with and without the tool run in random
order within a process (overhead_blocks.py), and the processes run in shuffled rounds. Tools that
attach and detach cleanly share a process. torch.profiler has its own, because it keeps its memory;
so has traceml-ai, which cannot be detached: its patches are swapped out by hand for its bare
blocks (overhead_traceml.py).

Needs benchmarks/requirements.txt. `--quick` only checks that it works: no traceml-ai, too few
blocks to trust, nothing written.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import overhead_push
from benchmarks.overhead_blocks import ARMS, BARE, THREADS, TRACEML
from benchmarks.report import quartiles, show, write
from rank_probe.api import _Stage
from rank_probe.stages import BACKWARD, DATA, FORWARD, OPTIMIZER
from rank_probe.timeline import Timeline

ALONE = ("torch.profiler",)
TOGETHER = tuple(name for name in ARMS if name not in ALONE)
# A tool that makes a step this much longer costs 1 % of a step of 100 ms.
PERCENT_OF_100_MS = 1_000


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 5
    blocks: int = 60
    steps: int = 100
    hot_calls: int = 50_000
    pushes: int = 100
    groups: tuple[tuple[str, ...], ...] = (TOGETHER, ALONE, (TRACEML,))


QUICK = Size(rounds=1, blocks=2, steps=20, hot_calls=500, pushes=3, groups=(TOGETHER, ALONE))


def row(what: str, values: Sequence[float], *, share: float | None = None) -> dict[str, Any]:
    """Return a row of the result; *share* is the µs that make up 1 %."""
    found = quartiles(values)
    percent = None if share is None else found["median"] / share
    return {"what": what, "unit": "µs"} | found | {"% of a 100 ms step": percent}


def hot_rows(calls: int) -> Iterator[dict[str, Any]]:
    """Yield the cost of the probe's single moves in a loop that does nothing else."""
    timeline = Timeline(automatic=False)
    stage = _Stage(timeline, FORWARD)

    def with_block() -> None:
        with stage:
            pass

    def whole_step() -> None:
        for number in (DATA, FORWARD, BACKWARD, OPTIMIZER):
            timeline.enter(number)
            timeline.leave()
        timeline.enter_wait()
        timeline.leave_wait()
        timeline.complete_step()

    def enter_and_leave() -> None:
        timeline.enter(FORWARD)
        timeline.leave()

    for what, move in (
        ("enter and leave a stage (hot)", enter_and_leave),
        ("with probe.stage(...) (hot)", with_block),
        ("a whole step: 4 stages, a wait, the commit (hot)", whole_step),
    ):
        yield row(what, _hot(move, timeline, calls))


def _hot(move: Callable[[], None], timeline: Timeline, calls: int) -> list[float]:
    """Return µs per call, including what is done later with its records."""
    costs = []
    for _ in range(9):
        started = time.perf_counter_ns()
        for _ in range(calls):
            move()
        timeline.steps.totals()
        costs.append((time.perf_counter_ns() - started) / calls / 1e3)
    return costs


def arm_rows(size: Size) -> Iterator[dict[str, Any]]:
    """Yield a step of the bare loop, and what each tool adds to one."""
    costs: dict[str, list[float]] = {}
    for _ in range(size.rounds):
        for group in random.sample(size.groups, len(size.groups)):
            for name, values in _process(group, size).items():
                costs.setdefault(name, []).extend(values)
    yield row("a step of the bare loop", costs.pop(BARE))
    for name in (*ARMS, TRACEML):
        if name in costs:
            yield row(f"added to a step: {name}", costs[name], share=PERCENT_OF_100_MS)
    if THREADS in costs:
        yield row("CPU of traceml-ai's threads, a step, not in its figure", costs[THREADS])


def _process(arms: Sequence[str], size: Size) -> dict[str, list[float]]:
    """Measure *arms* in their own process; raises RuntimeError with its last words."""
    amount = ["--steps", str(size.steps), "--blocks", str(size.blocks)]
    command = [sys.executable, "-m", "benchmarks.overhead_blocks", *amount, *arms]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{', '.join(arms)} could not be measured: {done.stderr[-2000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def push_row(pushes: int) -> dict[str, Any]:
    """Return the CPU time of a push; there is one per second."""
    with tempfile.TemporaryDirectory() as directory:
        costs = overhead_push.microseconds(Path(directory), pushes)
    return row("CPU of a push, one a second", costs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the probe costs, beside other tools.")
    parser.add_argument("--quick", action="store_true", help="see that it runs; keep nothing")
    quick = parser.parse_args().quick
    size = QUICK if quick else Size()
    rows = [*arm_rows(size), push_row(size.pushes), *hot_rows(size.hot_calls)]
    if quick:
        show(rows)
    else:
        write("overhead", rows, packages=("torch", "traceml-ai", "prometheus-client"))


if __name__ == "__main__":
    main()

"""What the probe costs, compared with other tools on the same loop in the same run.

A figure "added to a step" is the median of paired differences: blocks of steps with and without the
tool alternate within a process (blocks.py), and the processes run in shuffled rounds. It
comes with the 95 % confidence interval of that median (report.py). Wall time is the cost; the CPU
time of the training thread stands beside it, because it can be trusted on a busy machine too.

Tools that attach and detach cleanly share a process. torch.profiler has its own, because it keeps
its memory; so has traceml-ai, which cannot be detached: its patches are swapped out by hand for its
bare blocks (traceml.py).

`--gpu` measures the CUDA loops alone, without traceml-ai; its rows go to results/overhead_gpu.json.
`--before CHECKOUT` also measures the rank_probe of another checkout, process by process among the
others; its rows go to results/overhead_before.json. `--quick` only checks that it works: no
traceml-ai, too few blocks to trust, nothing written. Needs benchmarks/requirements.txt.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rank_probe
from benchmarks.overhead import arms, push, tables
from benchmarks.overhead.blocks import ADDED, BARE, THREADS, TRACEML, Costs
from benchmarks.overhead.loops import LOOPS, PLAIN, Loop
from benchmarks.overhead.processes import Group, measure_all
from benchmarks.report import median_interval, show, write
from devstack.parts import ROOT

OURS = tuple(name for name in PLAIN.arms if name.startswith("probe"))
TOGETHER = tuple(name for name in PLAIN.arms if name != "torch.profiler")
PACKAGES = ("torch", "traceml-ai", "prometheus-client")
# A tool that makes a step this much longer costs 1 % of a step of 100 ms.
PERCENT_OF_100_MS = 1_000


@dataclass(frozen=True)
class Size:
    """How much is measured: *processes* per group of arms, and *blocks* of *steps* in each.

    With these, `make bench-overhead` takes about 15 minutes on a quiet machine. The other loops
    have half as many blocks, and tools that add hundreds of µs fewer still.
    """

    processes: int = 10
    blocks: int = 12
    blocks_of_others: int = 3
    steps: int = 400
    hot_calls: int = 50_000
    pushes: int = 100
    tools: tuple[str, ...] = ("torch.profiler", TRACEML)

    def groups(self) -> list[Group]:
        """Return what to measure of this checkout."""
        alone = [Group("plain", (name,), self.blocks_of_others) for name in self.tools]
        return [Group("plain", TOGETHER, self.blocks), *self._other_loops(), *alone]

    def groups_before(self) -> list[Group]:
        """Return what to measure of the other checkout: the probe only."""
        return [Group("plain", OURS, self.blocks), *self._other_loops()]

    def _other_loops(self) -> list[Group]:
        loops = [name for name in LOOPS if name != "plain"]
        if not torch.cuda.is_available():
            loops = [name for name in loops if name not in ON_GPU]
        return [Group(name, tuple(LOOPS[name].arms), self.blocks // 2) for name in loops]


QUICK = Size(
    processes=1,
    blocks=12,
    blocks_of_others=6,
    steps=10,
    hot_calls=500,
    pushes=6,
    tools=("torch.profiler",),
)

# About five minutes together. A machine with a GPU drifts by more than the probe costs: many short
# pairs.
ON_GPU = {
    "CUDA": Size(processes=6, blocks=48, steps=100),
    "busy CUDA": Size(processes=3, blocks=10, steps=20),
}


def row(
    what: str,
    microseconds: Sequence[float],
    *,
    cpu: Sequence[float] | None = None,
    share: float | None = None,
) -> dict[str, Any]:
    """Return a row of the result; *cpu* is of the training thread, *share* the µs that are 1 %."""
    found = median_interval(microseconds)
    median = found["median"]
    percent = None if share is None or median is None else median / share
    of_cpu = dict.fromkeys(found) if cpu is None else median_interval(cpu)
    named = {f"CPU {name}": value for name, value in of_cpu.items()}
    return {"what": what, "unit": "µs"} | found | named | {"% of a 100 ms step": percent}


def loop_names(loop: Loop) -> Iterator[str]:
    """Yield what is measured on *loop*, in the order of the table."""
    ranks = [f", rank {rank}" for rank in range(loop.ranks)] if loop.ranks > 1 else [""]
    for rank in ranks:
        for what in (BARE, *(ADDED + arm for arm in loop.arms)):
            yield f"{what}{loop.name}{rank}"
    if loop is PLAIN:
        yield ADDED + TRACEML
        yield THREADS


def arm_rows(costs: Costs) -> Iterator[dict[str, Any]]:
    """Yield a step of each bare loop, and what each tool adds to one."""
    for name in (name for loop in LOOPS.values() for name in loop_names(loop)):
        if name in costs:
            wall, cpu = zip(*costs[name], strict=True)
            yield row(
                name,
                wall,
                cpu=None if name == THREADS else cpu,
                share=PERCENT_OF_100_MS if name.startswith(ADDED) else None,
            )


def hot_rows(calls: int) -> Iterator[dict[str, Any]]:
    """Yield the cost of the manual API in a loop that does nothing else."""

    def with_block() -> None:
        with rank_probe.stage("forward"):
            pass

    def whole_step() -> None:
        for name in ("data", "forward", "backward", "optimizer"):
            with rank_probe.stage(name):
                pass
        rank_probe.step()

    for what, move in (
        ("with probe.stage(...) (hot)", with_block),
        ("a whole step: 4 stages and probe.step() (hot)", whole_step),
    ):
        with arms.probe(automatic=False):
            yield row(what, _hot(move, calls))


def _hot(move: Callable[[], None], calls: int) -> list[float]:
    """Return µs per call, including what is done later with its records."""
    costs = []
    for _ in range(9):
        started = time.perf_counter_ns()
        for _ in range(calls):
            move()
        arms.fold()
        costs.append((time.perf_counter_ns() - started) / calls / 1e3)
    return costs


def push_row(pushes: int) -> dict[str, Any]:
    """Return the CPU time of a push; there is one per second."""
    with tempfile.TemporaryDirectory() as directory:
        costs = push.microseconds(Path(directory), pushes)
    return row("CPU of a push, one a second", costs)


def measured(size: Size, before: Path | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of this checkout, and those of *before*."""
    groups = {ROOT: size.groups()}
    if before is not None:
        groups[before] = size.groups_before()
    costs = measure_all(groups, processes=size.processes, steps=size.steps)
    rows = [*arm_rows(costs[ROOT]), push_row(size.pushes), *hot_rows(size.hot_calls)]
    rows_before = [] if before is None else list(arm_rows(costs[before]))
    return rows, [each | {"what": f"before: {each['what']}"} for each in rows_before]


def on_gpu() -> list[dict[str, Any]]:
    """Return the rows of the CUDA loops, each with the name of the GPU."""
    costs: Costs = {}
    for loop, size in ON_GPU.items():
        group = Group(loop, tuple(LOOPS[loop].arms), size.blocks)
        costs |= measure_all({ROOT: [group]}, processes=size.processes, steps=size.steps)[ROOT]
    return [{"GPU": torch.cuda.get_device_name(), **each} for each in arm_rows(costs)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the probe costs, beside other tools.")
    parser.add_argument("--quick", action="store_true", help="see that it runs; keep nothing")
    parser.add_argument("--gpu", action="store_true", help="the CUDA loops alone")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="measure its probe too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("CUDA is left out: torch sees no CUDA device here.")
    size = QUICK if arguments.quick else Size()
    if arguments.gpu:
        write("overhead_gpu", on_gpu(), ("torch",), tables={"overhead_gpu": tables.on_gpu})
        return
    rows, rows_before = measured(size, arguments.before)
    if arguments.quick:
        show([*rows, *rows_before])
        return
    write("overhead", rows, PACKAGES, tables={"overhead": tables.overhead})
    if rows_before:
        write("overhead_before", rows_before, packages=PACKAGES)


if __name__ == "__main__":
    logging.getLogger("rank_probe").setLevel(logging.ERROR)  # The hot rows' pushes reach nobody.
    main()

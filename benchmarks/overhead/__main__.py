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
others; its rows go to results/overhead_before.json. Needs
benchmarks/requirements.txt.
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
from benchmarks.overhead import arms
from benchmarks.overhead.blocks import ADDED, BARE, THREADS, TRACEML, Costs
from benchmarks.overhead.loops import LOOPS, PLAIN, Loop
from benchmarks.overhead.processes import Group, measure_all
from benchmarks.report import Row, digits, measured_with, median_interval, percent, write
from devstack.parts import ROOT
from generators.markdown import table
from rank_probe.probe import Probe
from rank_probe.report.push import Pusher
from tests.rank_probe.sink import listening

OURS = tuple(name for name in PLAIN.arms if name.startswith("probe"))
TOGETHER = tuple(name for name in PLAIN.arms if name != "torch.profiler")
PACKAGES = ("torch", "traceml-ai", "prometheus-client")
# A tool that makes a step this much longer costs 1 % of a step of 100 ms.
PERCENT_OF_100_MS = 1_000
# A push is measured for a rank of 100 ms steps.
STEPS_A_SECOND = 10
RANK = {"RANKSKEW_JOB_ID": "overhead", "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}
# These rows are the probe; the others are compared with it.
AUTOMATIC = f"{ADDED}probe, automatic"
PUSH = "CPU of a push, one a second"
# The most that the probe may cost, in µs of wall time, and of CPU where the wall time includes
# waits for other ranks.
GOALS = {AUTOMATIC: ("median", 10), PUSH: ("median", 300)} | {
    f"{AUTOMATIC}, DDP, rank {rank}": ("CPU median", 15) for rank in (0, 1)
}


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


# About five minutes together. Many short pairs, because a machine with a GPU drifts by more than
# the probe costs.
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
    """Return µs per call, including the later folding of its records."""
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
        costs = push_microseconds(Path(directory), pushes)
    return row(PUSH, costs)


def push_microseconds(directory: Path, pushes: int) -> list[float]:
    """Return the CPU time of each of *pushes* pushes to a server on a socket in *directory*.

    Between two pushes the timed loop does the steps of a second, and then ten times as much untimed
    work, so that a push finds its code and data as cold as in a job. The server is a thread of this
    process; its CPU time is not included.
    """
    training = arms.Training()
    timed = arms.batches(STEPS_A_SECOND)
    untimed = arms.batches(10 * STEPS_A_SECOND)
    probe = Probe(automatic=True, environment=RANK)
    path = directory / "exporter.sock"
    costs = []
    with listening(path):
        pusher = Pusher(f"unix:{path}", probe.snapshot, on_answer=probe._after_push)
        for _ in range(pushes + 1):
            probe.attach()
            training.run(timed)
            probe.detach()
            training.run(untimed)
            costs.append(_push(pusher))
        pusher.stop()
    arms.assert_it_works()
    if pusher.failed_pushes:
        raise RuntimeError(f"{pusher.failed_pushes} pushes failed, so their cost says nothing")
    return costs[1:]  # The first one connects.


def _push(pusher: Pusher) -> float:
    started = time.thread_time_ns()
    pusher.push()
    return (time.thread_time_ns() - started) / 1e3


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


def overhead_table(result: Row) -> str:
    """Return what each tool adds to a step, beside what the probe adds, and the probe's moves."""
    ours = next(row["median"] for row in result["rows"] if row["what"] == AUTOMATIC)
    cells = [
        (
            row["what"],
            _interval(row),
            _interval(row, "CPU "),
            percent(row["% of a 100 ms step"]),
            _times(row, ours),
        )
        for row in result["rows"]
    ]
    header = (
        "what",
        "median (95 % confidence interval)",
        "CPU of the training thread",
        "share of a 100 ms step",
        "times the probe, automatic",
    )
    return f"{measured_with(result)}\n{_beside_goals(result)}\n\n{table(header, cells)}"


def gpu_table(result: Row) -> str:
    """Return a step of the loop on a GPU, and what the probe adds to it."""
    header = ("what", "median (95 % confidence interval)", "CPU of the training thread")
    made = result["rows"]
    cells = [(row["what"], _interval(row), _interval(row, "CPU ")) for row in made]
    machine = measured_with(result).removesuffix(".")
    return f"{machine} and one {made[0]['GPU']}.\n\n{table(header, cells)}"


def _beside_goals(result: Row) -> str:
    found = {row["what"]: row for row in result["rows"]}
    return "\n".join(
        f"*{what}*: {found[what][kind]:.3g} µs{' of CPU' if kind != 'median' else ''}, "
        f"{'within' if found[what][kind] <= goal else '**over**'} the goal of {goal} µs."
        for what, (kind, goal) in GOALS.items()
        if what in found
    )


def _interval(row: Row, clock: str = "") -> str:
    """Return a median with the interval it lies in; nothing if *clock* did not measure it."""
    median, low, high = (row[f"{clock}{name}"] for name in ("median", "95 % from", "95 % to"))
    if median is None:
        return ""
    told = f"{digits(median)} {row['unit']}"
    return told if low is None else f"{told} ({digits(low)} to {digits(high)})"


def _times(row: Row, ours: float) -> str:
    return f"{row['median'] / ours:.1f}" if row["what"].startswith(ADDED) else ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the probe costs, beside other tools.")
    parser.add_argument("--gpu", action="store_true", help="the CUDA loops alone")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="measure its probe too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("CUDA is left out: torch sees no CUDA device here.")
    if arguments.gpu:
        write("overhead_gpu", on_gpu(), ("torch",), tables={"overhead_gpu": gpu_table})
        return
    rows, rows_before = measured(Size(), arguments.before)
    write("overhead", rows, PACKAGES, tables={"overhead": overhead_table})
    if rows_before:
        write("overhead_before", rows_before, packages=PACKAGES)


if __name__ == "__main__":
    logging.getLogger("rank_probe").setLevel(logging.ERROR)  # The hot rows' pushes reach nobody.
    main()

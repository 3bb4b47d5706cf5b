"""Paired blocks of training steps with and without a tool: what the tool adds to a step.

`python -m benchmarks.overhead.blocks --loop plain --steps 40 --blocks 90 ARM...` measures the arms
in one process and prints the µs per step of each, as JSON. Each round runs the bare loop, and then
each arm once, in random order, with the bare loop after it. A figure is an arm's block minus the
mean of the bare blocks right before and after it, because the speed of the machine drifts.

With `--loop DDP` it is one of two ranks, under torchrun: `--seed` gives both the same order, and
rank 0 prints the figures of both.

Wall time is the cost. The CPU time of the training thread is measured beside it: a difference of
the two is time in which that thread did not run, because it waited for another rank, for another
thread (the interpreter's lock, the GPU's thread of the autograd engine), or for a core. So CPU time
stays meaningful on a busy machine, but leaves out what other threads do.
"""

import argparse
import json
import logging
import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

import rank_probe
from benchmarks.overhead.arms import Arm, Batches, Training, bare
from benchmarks.overhead.loops import LOOPS, Loop
from benchmarks.overhead.traceml import serving

BARE = "a step of the bare loop"
ADDED = "added to a step: "
TRACEML = "traceml-ai"
THREADS = "CPU of traceml-ai's threads, a step, not in its figure"
# A tool's work at its first steps is not part of the cost of a step.
WARM_UP_STEPS = 10


class Cost(NamedTuple):
    """µs of a step: wall time, and CPU time of the training thread."""

    wall: float
    cpu: float


Costs = dict[str, list[Cost]]


def measure(
    loop: Loop, arms: Mapping[str, Arm], *, steps: int, blocks: int, order: random.Random
) -> Costs:
    """Return what a step of the bare *loop* costs, and what each of *arms* adds, once per block.

    No two figures of an arm share a bare block, so they are independent.
    """
    training, loader = loop.training(), loop.batches(steps)
    warm_up = loop.batches(WARM_UP_STEPS)
    found: Costs = {BARE: [], **{ADDED + name: [] for name in arms}}

    def cost(arm: Arm) -> Cost:
        return block(arm, training, warm_up, loader, loop)

    for arm in arms.values():  # A tool's first block is slower.
        cost(arm)
    for _ in range(blocks):
        before = cost(bare)
        found[BARE].append(before)
        for name in order.sample(list(arms), len(arms)):
            with_tool, after = cost(arms[name]), cost(bare)
            found[ADDED + name].append(_added(with_tool, before, after))
            before = after
    return found


def _added(with_tool: Cost, before: Cost, after: Cost) -> Cost:
    return Cost(
        with_tool.wall - (before.wall + after.wall) / 2,
        with_tool.cpu - (before.cpu + after.cpu) / 2,
    )


def block(arm: Arm, training: Training, warm_up: Batches, loader: Batches, loop: Loop) -> Cost:
    """Attach *arm*, train for a block, detach; return the cost of a step."""
    steps = len(loader)
    with arm(training) as train:
        train(warm_up)
        loop.get_ready()
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        train(loader)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    return Cost(wall / steps / 1e3, cpu / steps / 1e3)


def other_threads_seconds() -> float:
    """Return the CPU time of the process, minus that of the calling thread."""
    return time.process_time() - time.thread_time()


def measure_named(arguments: argparse.Namespace) -> Costs:
    """Measure the arms that *arguments* name, traceml-ai with its threads."""
    loop: Loop = LOOPS[arguments.loop]
    order = random.Random(arguments.seed)
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(serving()) if name == TRACEML else loop.arms[name]
            for name in arguments.arms
        }
        before = other_threads_seconds()
        blocks: int = arguments.blocks
        found = measure(loop, arms, steps=arguments.steps, blocks=blocks, order=order)
        if TRACEML in arms:  # No other arm's threads survive its blocks.
            cpu = other_threads_seconds() - before
            traced = (blocks + 1) * (arguments.steps + WARM_UP_STEPS)
            found[THREADS] = [Cost(cpu / traced * 1e6, cpu / traced * 1e6)]
    return {name + loop.name: costs for name, costs in found.items()}


def measure_as_rank(arguments: argparse.Namespace) -> Costs:
    """Measure as one of several ranks; return the figures of all of them on rank 0, else none."""
    dist.init_process_group("gloo")
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, measure_named(arguments))
    is_first = dist.get_rank() == 0
    dist.barrier()  # Rank 0 serves the store: it leaves last.
    dist.destroy_process_group()
    return {
        f"{name}, rank {rank}": costs
        for rank, found in enumerate(gathered if is_first else [])
        for name, costs in found.items()
    }


def main() -> None:
    """Measure, and print which probe was measured, and the figures."""
    # Nobody listens: a block ends before the first push, and the last push fails at once.
    logging.getLogger("rank_probe").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description="Blocks of steps with and without a tool.")
    parser.add_argument("arms", nargs="+", metavar="ARM")
    parser.add_argument("--loop", choices=LOOPS, default="plain")
    parser.add_argument("--steps", type=int, required=True, help="steps a block")
    parser.add_argument("--blocks", type=int, required=True, help="blocks an arm")
    parser.add_argument("--seed", type=int, help="of the order of the arms")
    arguments = parser.parse_args()
    ours = [*LOOPS[arguments.loop].arms, TRACEML]
    if unknown := set(arguments.arms) - set(ours):
        parser.error(f"no such arm: {', '.join(unknown)}; there are: {', '.join(ours)}")
    is_job = LOOPS[arguments.loop].ranks > 1
    found = measure_as_rank(arguments) if is_job else measure_named(arguments)
    if found:
        probe = Path(rank_probe.__file__).resolve().parent
        print(json.dumps({"probe": str(probe), "costs": found}))
    if is_job:
        sys.stdout.flush()
        # Gloo's threads may abort a process while its interpreter ends (pytorch/pytorch#179291).
        os._exit(0)


if __name__ == "__main__":
    main()

"""Paired blocks of training steps with and without a tool: what the tool adds to a step.

`python -m benchmarks.overhead_blocks --steps 100 --blocks 60 ARM...` measures the arms in one
process and prints a list of µs per step for each, as JSON. In every round, each arm and the bare
loop run once, in random order; a figure is the difference to the bare block of the same round,
because the speed of the machine drifts.
"""

import argparse
import json
import logging
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks import overhead_arms
from benchmarks.overhead_arms import Arm, Batches, Training
from benchmarks.overhead_traceml import serving

BARE = "bare"
TRACEML = "traceml-ai"
THREADS = "traceml-ai's threads"
ARMS: dict[str, Arm] = {
    "bare, again": overhead_arms.bare,
    "probe, automatic": overhead_arms.automatic,
    "probe, automatic, backward cut at its root": overhead_arms.automatic_at_root,
    "probe, manual": overhead_arms.manual,
    "Prometheus histograms by hand": overhead_arms.histograms,
    "torch.profiler": overhead_arms.torch_profiler,
}
WARM_UP = overhead_arms.batches(10)


def measure(arms: Mapping[str, Arm], *, steps: int, blocks: int) -> dict[str, list[float]]:
    """Return µs per step: of the bare loop, and what each of *arms* adds to it, one per block."""
    training, loader = Training(), overhead_arms.batches(steps)
    every: dict[str, Arm] = {BARE: overhead_arms.bare, **arms}
    found: dict[str, list[float]] = {name: [] for name in every}
    for number in range(blocks + 1):
        order = random.sample(list(every), len(every))
        cost = {name: block(every[name], training, loader, steps) for name in order}
        if number:  # The first round warms up.
            for name, costs in found.items():
                costs.append(cost[name] - (cost[BARE] if name != BARE else 0))
    return found


def block(arm: Arm, training: Training, loader: Batches, steps: int) -> float:
    """Attach *arm*, train for a block, detach; return µs per step of the training."""
    with arm(training) as train:
        train(WARM_UP)  # A tool's work at its first step is not part of the cost of a step.
        started = time.perf_counter_ns()
        train(loader)
        return (time.perf_counter_ns() - started) / steps / 1e3


def other_threads_seconds() -> float:
    """Return the CPU time of the process, minus that of the calling thread."""
    return time.process_time() - time.thread_time()


def main() -> None:
    """Measure the arms that the arguments name."""
    # Nobody listens: a block ends before the first push, and the last push fails at once.
    logging.getLogger("rank_probe").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description="Blocks of steps with and without a tool.")
    parser.add_argument("arms", nargs="+", choices=[*ARMS, TRACEML], metavar="ARM")
    parser.add_argument("--steps", type=int, required=True, help="steps a block")
    parser.add_argument("--blocks", type=int, required=True, help="blocks an arm")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(serving()) if name == TRACEML else ARMS[name]
            for name in arguments.arms
        }
        before = other_threads_seconds()
        found = measure(arms, steps=arguments.steps, blocks=arguments.blocks)
        if TRACEML in arms:  # No other arm's threads survive its blocks.
            traced = (arguments.blocks + 1) * (arguments.steps + len(WARM_UP))
            found[THREADS] = [(other_threads_seconds() - before) / traced * 1e6]
    print(json.dumps(found))


if __name__ == "__main__":
    main()

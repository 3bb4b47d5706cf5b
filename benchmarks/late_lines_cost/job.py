"""Two ranks that train on the CPU, of which one at a time has its stack sampled.

    torchrun --nproc-per-node 2 -m benchmarks.late_lines_cost.job SECONDS

In each block of steps either rank 0 or rank 1 is sampled, in turn. Rank 0 prints as JSON the
medians of each block, as [[rank 0, rank 1], ...] for the step without its wait in `wall` and for
the CPU time of the training thread in `cpu`, both in milliseconds, and how often a stack was
sampled.
"""

import json
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from rank_probe.lines.stacks import Stacks

# Short, so that neighbours meet the same load of the machine.
BLOCK_SECONDS = 2.0
WARM_UP_STEPS = 20
# A step of 50 ms or more has a sample in it, so the median step shows what a sample costs.
PASSES = 15
WIDTH, LAYERS, BATCH = 192, 10, 64


def tokens_of(text: str) -> list[int]:
    """Do what a collate function in Python does: a part of the step that holds the interpreter."""
    return [hash(word) & 0xFFFF for word in text.split()]


class Job:
    """A step of training: Python and small matrices, so the interpreter is wanted all the time."""

    def __init__(self) -> None:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._text = "a line of text that a collate function splits into words " * 300
        self._met = torch.zeros(1)

    def step(self) -> tuple[float, float]:
        """Train once, then wait for the other rank; return the time without the wait, wall and CPU.

        Both in milliseconds.
        """
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(PASSES):
            tokens_of(self._text)
            self._optimizer.zero_grad()
            self._model(torch.randn(BATCH, WIDTH)).square().mean().backward()
            self._optimizer.step()
        own = time.perf_counter() - wall, time.thread_time() - cpu
        dist.all_reduce(self._met)
        return own[0] * 1e3, own[1] * 1e3


def main() -> None:
    """Train in blocks."""
    seconds = float(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = Job()
    thread = threading.get_ident()
    stacks = Stacks({}, lambda: thread, lambda: "forward")
    warm = [job.step()[0] for _ in range(WARM_UP_STEPS)]
    # Both must know the same number of steps, whichever is slower.
    pace = torch.tensor([statistics.median(warm)])
    dist.all_reduce(pace, dist.ReduceOp.MAX)
    steps = max(10, round(BLOCK_SECONDS * 1e3 / pace.item()))
    medians: list[list[float]] = []
    began, elapsed = time.monotonic(), torch.zeros(1)
    while elapsed.item() < seconds or len(medians) % 2:
        stacks.watch("forward" if len(medians) % 2 == rank else None)
        times = [job.step() for _ in range(steps)]
        medians.append([statistics.median(each) for each in zip(*times, strict=True)])
        elapsed[0] = time.monotonic() - began
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)  # Both end with the same block.
    stacks.watch(None)
    gathered: list[list[list[float]]] = [[], []]
    samples = [0, 0]
    dist.all_gather_object(gathered, medians)
    dist.all_gather_object(samples, stacks.samples)
    if rank == 0:
        told = {
            clock: [[one[place], other[place]] for one, other in zip(*gathered, strict=True)]
            for place, clock in enumerate(("wall", "cpu"))
        }
        print(json.dumps({**told, "steps": steps, "samples": sum(samples)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

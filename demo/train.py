"""A small data-parallel training: torch DDP over gloo on the CPU, without any Rankskew code.

    torchrun --nproc-per-node 4 demo/train.py
    torchrun --nproc-per-node 4 -m rank_probe demo/train.py --fault data

Sleeping emulates what a GPU would compute, so four ranks fit on two cores; --real-compute
multiplies matrices instead. --fault makes one stage of one rank slower by --delay seconds per step.
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

# Share of a healthy step for each stage; a fault may also come after the optimizer.
SHARE = {"data": 0.2, "forward": 0.3, "backward": 0.4, "optimizer": 0.1, "after_optimizer": 0.0}
VARIANTS = ("plain", "accumulate", "batchnorm")
FEATURES, BATCH, BLOCKS = 64, 32, 2

Work = Callable[[float], None]
Batch = tuple[Tensor, Tensor]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A torch DDP training with a planted straggler.")
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
    parser.add_argument("--fault", choices=("none", *SHARE), default="none")
    parser.add_argument("--fault-rank", type=int, default=2, help="rank that is slow (default 2)")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds a step it is slower by")
    parser.add_argument("--step-seconds", type=float, default=0.2, help="length of a healthy step")
    parser.add_argument("--real-compute", action="store_true", help="multiply matrices, no sleep")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=100, help="optimizer steps (default 100)")
    length.add_argument("--seconds", type=float, help="as many steps as fit in about this long")
    return parser.parse_args()


def number_of_steps(options: argparse.Namespace) -> int:
    """Turn --seconds into a number of steps, so that every rank stops at the same one."""
    if options.seconds is None:
        return int(options.steps)
    step = options.step_seconds + (options.delay if options.fault != "none" else 0.0)
    return max(1, int(options.seconds / step + 0.5))


def seconds_by_stage(options: argparse.Namespace, rank: int) -> dict[str, float]:
    """Return how long each stage of one optimizer step takes on *rank*, its fault included."""
    seconds = {stage: share * options.step_seconds for stage, share in SHARE.items()}
    if options.fault != "none" and rank == options.fault_rank:
        seconds[options.fault] += options.delay
    return seconds


def matrix_work() -> Work:
    """Return work that multiplies matrices; every rank uses the speed of rank 0 running alone."""
    matrix = torch.rand(128, 128) / 128
    each = torch.zeros(1)
    if dist.get_rank() == 0:
        started = time.perf_counter()
        for _ in range(500):
            torch.mm(matrix, matrix)
        each[0] = (time.perf_counter() - started) / 500
    dist.broadcast(each, src=0)

    def multiply(seconds: float) -> None:
        for _ in range(round(seconds / each.item())):
            torch.mm(matrix, matrix)

    return multiply


class Batches(Dataset[Batch]):
    """Batches of a learnable task; each takes *seconds* to read."""

    def __init__(self, count: int, work: Work, seconds: float) -> None:
        self._count, self._work, self._seconds = count, work, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        if index >= self._count:
            raise IndexError(index)
        self._work(self._seconds)
        inputs = torch.randn(BATCH, FEATURES)
        return inputs, inputs.mean(dim=1, keepdim=True)


class EmulatedCompute(torch.autograd.Function):
    """The identity, with emulated work in its forward and its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Work, forward_s: float, backward_s: float) -> Tensor:
        ctx.work, ctx.backward_s = work, backward_s
        work(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.work(ctx.backward_s)
        return gradients[0], None, None, None


class Block(nn.Module):
    """One layer, with compute that takes the given seconds forward and backward."""

    def __init__(self, work: Work, forward_s: float, backward_s: float, normalize: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES) if normalize else nn.Identity()
        self._emulated = (work, forward_s, backward_s)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        x = EmulatedCompute.apply(x, *self._emulated)  # type: ignore[no-untyped-call]
        return torch.relu(self.norm(x))


class TimedSGD(torch.optim.SGD):
    """SGD whose step takes *seconds* more, inside torch's own step hooks."""

    def __init__(self, params: Any, work: Work, seconds: float) -> None:
        super().__init__(params, lr=0.01)
        self._work, self._seconds = work, seconds

    def step(self, closure: Any = None) -> Any:
        self._work(self._seconds)
        return super().step(closure)


def train(options: argparse.Namespace) -> None:
    """Run the training loop of one rank."""
    rank = dist.get_rank()
    work = matrix_work() if options.real_compute else time.sleep
    seconds = seconds_by_stage(options, rank)
    micro_batches = 4 if options.variant == "accumulate" else 1
    each = {stage: value / micro_batches for stage, value in seconds.items()}

    batches = Batches(number_of_steps(options) * micro_batches, work, each["data"])
    loader = DataLoader(batches, batch_size=None)  # An item is a whole batch.
    forward_s, backward_s = each["forward"] / BLOCKS, each["backward"] / BLOCKS
    normalize = options.variant == "batchnorm"
    blocks = [Block(work, forward_s, backward_s, normalize) for _ in range(BLOCKS)]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(FEATURES, 1)))
    optimizer = TimedSGD(model.parameters(), work, seconds["optimizer"])

    started = time.perf_counter()
    for index, (inputs, targets) in enumerate(loader, start=1):
        last = index % micro_batches == 0
        # Gradients are summed locally and exchanged with the last micro-batch only.
        exchange: AbstractContextManager[None] = nullcontext() if last else model.no_sync()
        with exchange:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
        if not last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        work(seconds["after_optimizer"])  # Logging, metrics, a checkpoint: whatever comes after.
        step = index // micro_batches
        if rank == 0 and step % 50 == 0:
            rate = step / (time.perf_counter() - started)
            print(f"step {step}  loss {loss.item():.4f}  {rate:.2f} steps/s", flush=True)


def main() -> None:
    """Join the process group, train, leave."""
    options = arguments()
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    torch.set_num_threads(1)  # Ranks share the machine's cores.
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

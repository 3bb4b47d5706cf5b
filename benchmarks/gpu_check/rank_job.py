"""The training of `ranks.py`: ranks that share one GPU, one of them late on it or on the host.

The device's work is torch's sleep kernel. It counts cycles of a clock that keeps running while
other processes use the GPU, so each rank that shares the GPU seems to have one of its own.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu_check.training import DEVICE, cycles_per_ms

WIDTH, ROWS = 256, 64
# Milliseconds of a healthy step.
HEALTHY = {"data": 8.0, "forward": 12.0, "backward": 20.0}


class DeviceTime(torch.autograd.Function):
    """Pass a tensor on, and keep the device busy on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, forward_cycles: int, backward_cycles: int) -> Tensor:
        """Queue the forward's part."""
        ctx.cycles = backward_cycles
        torch.cuda._sleep(forward_cycles)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Queue the backward's part."""
        torch.cuda._sleep(ctx.cycles)
        return gradients[0], None, None


# torch.compile would leave out a kernel whose result nobody reads.
device_time = torch.compiler.disable(DeviceTime.apply)


class Net(nn.Module):
    """Two layers with the device's time between them."""

    def __init__(self, forward_cycles: int, backward_cycles: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self._cycles = (forward_cycles, backward_cycles)

    def forward(self, rows: Tensor) -> Tensor:
        """Return a loss."""
        rows = device_time(self.first(rows), *self._cycles)
        loss: Tensor = self.last(rows.relu()).square().mean()
        return loss


class Batches(Dataset[Tensor]):
    """A practically endless dataset of batches, each of which takes *seconds* to make."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, _index: int) -> Tensor:
        time.sleep(self._seconds)
        return torch.randn(ROWS, WIDTH)


def sharded(net: nn.Module) -> nn.Module:
    """Return *net* in FSDP2."""
    fully_shard(net)
    return net


class Way(NamedTuple):
    """How a job wraps its model, and the backend of its process group."""

    wrap: Callable[[nn.Module], nn.Module]
    backend: str = "gloo"


WAYS = {
    "ddp": Way(DistributedDataParallel),
    "compiled": Way(lambda net: DistributedDataParallel(torch.compile(net))),
    "fsdp2": Way(sharded),
    "ddp-nccl": Way(DistributedDataParallel, "nccl"),
    "fsdp2-nccl": Way(sharded, "nccl"),
}


def join_process_group(backend: str) -> None:
    """Join; NCCL lets ranks share a GPU only if they appear to be on different hosts."""
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(backend)


def train(milliseconds: dict[str, float], wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Train until the process is ended."""
    each = cycles_per_ms()
    net = Net(int(milliseconds["forward"] * each), int(milliseconds["backward"] * each))
    model = wrap(net.to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in DataLoader(Batches(milliseconds["data"] / 1e3), batch_size=None):
        optimizer.zero_grad()
        model(rows.to(DEVICE, non_blocking=True)).backward()
        optimizer.step()


def main() -> None:
    """Join the process group and train; with --fault, rank --fault-rank is late."""
    parser = argparse.ArgumentParser(description="Ranks on one GPU with a planted straggler.")
    parser.add_argument("--wrap", choices=WAYS, default="ddp")
    parser.add_argument("--fault", choices=HEALTHY)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--fault-rank", type=int, default=2)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    way = WAYS[options.wrap]
    join_process_group(way.backend)
    milliseconds = dict(HEALTHY)
    if options.fault and distributed.get_rank() == options.fault_rank:
        milliseconds[options.fault] += options.delay_ms
    train(milliseconds, way.wrap)


if __name__ == "__main__":
    main()

"""The last rank never steps, as an evaluator or a rollout server; rank 1 of the others is slow."""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

LATE = 1
STEP_SECONDS, DELAY_SECONDS = 0.1, 0.1


class Layer(nn.Module):
    """A layer that takes the time of a step."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self._seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self._seconds)
        y: Tensor = self.linear(x)
        return y


def main() -> None:
    """Train, or wait for something to evaluate, until this is killed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, evaluator = dist.get_rank(), dist.get_world_size() - 1
    trainers = dist.new_group(list(range(evaluator)))
    while rank == evaluator:
        time.sleep(1)
    layer = Layer(STEP_SECONDS + (DELAY_SECONDS if rank == LATE else 0.0))
    model = DistributedDataParallel(layer, process_group=trainers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""The last rank never steps, as an evaluator or a rollout server; rank 1 of the others is slow."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from demo.train import FEATURES, Block

LATE = 1
STEP_SECONDS, DELAY_SECONDS = 0.3, 0.3


def main() -> None:
    """Train, or wait for something to evaluate, until this is killed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, evaluator = dist.get_rank(), dist.get_world_size() - 1
    trainers = dist.new_group(list(range(evaluator)))
    while rank == evaluator:
        time.sleep(1)
    seconds = STEP_SECONDS + (DELAY_SECONDS if rank == LATE else 0.0)
    layers = nn.Sequential(Block(time.sleep, seconds, 0.0, False), nn.Linear(FEATURES, 1))
    model = DistributedDataParallel(layers, process_group=trainers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        model(torch.ones(4, FEATURES)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""A small DDP training for test_profile.py and benchmarks/profile.py: rank 2 multiplies more.

profile_job.py PATH STEP_SECONDS

Ends once there is a file at PATH; rank 2 writes there what each step took, in milliseconds, by the
clock and of its training thread's CPU: [[wall, CPU], ...].
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

MOST_STEPS = 20_000
WIDTH = 64
LATE_RANK = 2
# Some 5 ms.
PLANTED = torch.ones(400, 400)


def main() -> None:
    """Train until somebody ends it."""
    path, step_seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ending = torch.zeros(1)
    rows = TensorDataset(torch.ones(MOST_STEPS, WIDTH))
    ended: list[tuple[float, float]] = []
    for (batch,) in DataLoader(rows, batch_size=1):
        if rank == LATE_RANK:
            torch.mm(PLANTED, PLANTED)
        model(batch).sum().backward()
        ending[0] = path.exists()
        dist.all_reduce(ending, dist.ReduceOp.MAX)
        optimizer.step()
        optimizer.zero_grad()
        ended.append((1e3 * time.perf_counter(), 1e3 * time.thread_time()))
        time.sleep(step_seconds)
        if ending.item():
            break
    if rank == LATE_RANK:
        took = [[b - a for a, b in zip(*each, strict=True)] for each in pairwise(ended)]
        path.write_text(json.dumps(took))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A small DDP training for test_elastic.py: 50 ms a step.

elastic_job.py STEPS [PATH]

Ends early once there is a file at PATH, and writes there how many steps it took.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEP_SECONDS = 0.05
BATCH = 4


def main() -> None:
    """Train."""
    steps = int(sys.argv[1])
    enough = Path(sys.argv[2] if len(sys.argv) > 2 else "")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.ones(BATCH * steps, 2))
    for number, (batch,) in enumerate(DataLoader(rows, batch_size=BATCH)):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_SECONDS)
        if enough.is_file():
            enough.write_text(str(number + 1))
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

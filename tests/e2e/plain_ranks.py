"""A training script that knows nothing of Rankskew; run by torchrun, it trains until it is killed.

*directory* gets a file for each rank with its process id, once all have met. The ranks in *bound*
may run on the first CPU only, as numactl would have it.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bound", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    rank = int(os.environ["RANK"])
    if rank in arguments.bound:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.distributed.init_process_group("gloo")
    gradient = torch.ones(1)
    torch.distributed.all_reduce(gradient)
    (arguments.directory / f"rank{rank}").write_text(str(os.getpid()))
    while True:
        torch.distributed.all_reduce(gradient)
        time.sleep(0.2)


if __name__ == "__main__":
    main()

"""One replica of a model that serves batches of requests; run by test_frameworks.py.

Takes the names of the cases. Each case is a job of its own.
"""

import os
import random
import sys
import time

import torch
import torch.distributed as dist

import rank_probe as probe
from tests.rank_probe.launch import leave

BATCHES, DELAY = 20, 0.04


class Requests:
    """A queue that hands out batches of requests of unequal length, some after a pause."""

    def __init__(self, seed: int, pause: float) -> None:
        self._lengths = random.Random(seed)
        self._pause = pause

    def get(self) -> int:
        """Return the next batch's tokens, once there is one."""
        time.sleep(self._pause)
        return self._lengths.choice((1, 2, 8))


def compute(tokens: int, delay: float) -> None:
    """Stand in for the model: it takes as long as there are tokens."""
    time.sleep(0.001 * tokens + delay)


def sharded(case: str, rank: int) -> None:
    """Serve with one model on all ranks: each batch goes to all, each layer ends in all_reduce."""
    requests = Requests(seed=0, pause=DELAY if case == "idle" else 0.0)
    delay = DELAY if rank == 1 and case == "sharded" else 0.0
    for _ in range(BATCHES):
        batch = torch.zeros(1)
        if rank == 0:
            # Idle is nobody's fault: it is waiting, for the clients.
            with probe.stage("sync"):
                batch[0] = requests.get()
        dist.broadcast(batch, src=0)
        with probe.stage("compute"):
            compute(int(batch.item()), delay)
            dist.all_reduce(torch.zeros(8))
        probe.step()


def independent(rank: int) -> None:
    """Serve with a model on each rank, which the others do not wait for."""
    requests = Requests(seed=rank, pause=0.0)
    for _ in range(BATCHES):
        with probe.stage("data"):  # Not sync: nobody here waits for another rank.
            batch = requests.get()
        with probe.stage("compute"):
            compute(batch, DELAY if rank == 1 else 0.0)
        probe.step()


def serve(case: str) -> None:
    """Serve the batches of *case* as a job of its own."""
    os.environ["RANKSKEW_JOB_ID"] = case
    probe.start()
    if case == "independent":
        independent(dist.get_rank())
    else:
        sharded(case, dist.get_rank())
    probe.finish()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        serve(name)
    dist.destroy_process_group()
    leave()

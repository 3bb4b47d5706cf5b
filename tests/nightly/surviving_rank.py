"""One rank of a data-parallel training that survives the death of its peers.

    python -m rank_probe tests/nightly/surviving_rank.py DIRECTORY 127.0.0.1:STORE_PORT

When a peer dies, the others leave the process group, wait for its successor and go on with a new
group: their processes, and what the probe has counted in them, live on. They end well once
DIRECTORY/stop exists. Each step takes about 20 ms, slept as in demo/train.py.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from demo.train import FEATURES, Batches, Block, TimedSGD
from tests.nightly.surviving_job import GENERATION, RECORD

STEP_SECONDS: Final = 0.02
ENDLESS: Final = 1 << 30
POLL_SECONDS: Final = 0.02
# Longer than any collective here; a peer that died while the group formed is noticed by it only.
TIMEOUT: Final = timedelta(seconds=3)
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def meet(store: Store, stop: Path) -> int | None:
    """Wait until every rank is ready for one generation; None if it is time to stop."""
    mine = -1
    while not stop.exists():
        generation = int(store.get(GENERATION))
        if generation != mine:
            if store.check([f"ready/{generation}/{RANK}"]):  # The process before this one was.
                advance(store, generation)
                continue
            store.set(f"ready/{generation}/{RANK}", "")
            mine = generation
        if store.check([f"ready/{generation}/{rank}" for rank in range(WORLD_SIZE)]):
            return generation
        time.sleep(POLL_SECONDS)
    return None


def advance(store: Store, generation: int) -> None:
    """End *generation*, if nobody else has."""
    store.compare_set(GENERATION, str(generation), str(generation + 1))


def train(stop: Path, step_ended: Callable[[], object]) -> None:
    """Run the loop until told to stop; raises RuntimeError when a peer is gone."""
    part = STEP_SECONDS / 10
    blocks = [Block(time.sleep, part, 2 * part, False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(FEATURES, 1)))
    optimizer = TimedSGD(model.parameters(), time.sleep, part)
    batches = Batches(ENDLESS, time.sleep, 2 * part)
    for inputs, targets in DataLoader(batches, batch_size=None, shuffle=False):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        step_ended()
        if stop.exists():
            return


def main() -> None:
    """Train in one group after the other until told to stop."""
    directory, address = Path(sys.argv[1]), sys.argv[2]
    stop = directory / "stop"
    torch.set_num_threads(1)
    host, _, port = address.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)
    # Each record reaches the system at once.
    own_steps = (directory / f"{RANK}-{os.getpid()}.steps").open("wb", buffering=0)
    while (generation := meet(store, stop)) is not None:
        own = PrefixStore(f"group{generation}", store)
        try:
            dist.init_process_group(
                "gloo", store=own, rank=RANK, world_size=WORLD_SIZE, timeout=TIMEOUT
            )
            train(stop, lambda: own_steps.write(RECORD.pack(time.monotonic())))
        except RuntimeError as error:  # How torch says that a peer has closed its connection.
            print(f"rank {RANK} leaves generation {generation}: {str(error)[:150]}", flush=True)
        finally:
            advance(store, generation)
            if dist.is_initialized():
                dist.destroy_process_group()


if __name__ == "__main__":
    main()

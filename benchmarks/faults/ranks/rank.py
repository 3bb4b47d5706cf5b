"""One rank of a data-parallel training that survives the death of its peers.

    python -m rank_probe benchmarks/faults/rank.py DIRECTORY --store 127.0.0.1:PORT --nap nap.so

When a peer dies, the others leave the process group, wait for its successor and go on with a new
group: their processes, and what the probe has counted in them, live on. They end well once
DIRECTORY/stop exists. Each step takes about 20 ms, slept as in demo/train.py.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.faults.ranks.pauses import Hooks, Pauses, empty_loop, naps
from benchmarks.faults.ranks.records import Recorder
from demo.train import BATCH, FEATURES, Batches, Block, TimedSGD, Work

STEP_SECONDS: Final = 0.02
ENDLESS: Final = 1 << 30
POLL_SECONDS: Final = 0.02
# Longer than any collective here; a peer that died while the group formed is noticed by it only.
TIMEOUT: Final = timedelta(seconds=3)
GENERATION: Final = "generation"


@dataclass(frozen=True)
class Me:
    """This rank, how it sleeps, and where it writes what it counts."""

    rank: int
    world_size: int
    stop: Path
    work: Work
    pauses: Pauses
    empty_loop: Callable[[float], float]
    recorder: Recorder


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser(description="A rank that survives its peers.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--store", required=True, help="host:port of the TCPStore")
    parser.add_argument("--nap", type=Path, required=True, help="the library of pauses.build()")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pauses = Pauses()
    recorder = Recorder(options.directory, rank)
    stop = options.directory / "stop"
    work, loop = naps(options.nap, pauses), empty_loop(options.nap)
    me = Me(rank, world_size, stop, work, pauses, loop, recorder)
    host, _, port = options.store.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)
    Hooks(pauses).watch()
    while not stop.exists():
        generation = meet(me, store)
        if generation is not None:
            train_in(generation, me, store)


def meet(me: Me, store: Store) -> int | None:
    """Wait until every rank is ready for one generation; None if it is time to stop."""
    mine = -1
    while not me.stop.exists():
        generation = int(store.get(GENERATION))
        if generation != mine:
            if store.check([_ready(generation, me.rank)]):  # The process before this one was.
                advance(store, generation)
                continue
            store.set(_ready(generation, me.rank), "")
            mine = generation
        if store.check([_ready(generation, rank) for rank in range(me.world_size)]):
            return generation
        time.sleep(POLL_SECONDS)
    return None


def advance(store: Store, generation: int) -> None:
    """End *generation*, if nobody else has."""
    store.compare_set(GENERATION, str(generation), str(generation + 1))


def train_in(generation: int, me: Me, store: Store) -> None:
    """Train in a group of its own until a peer is gone."""
    own = PrefixStore(f"group{generation}", store)
    try:
        dist.init_process_group(
            "gloo", store=own, rank=me.rank, world_size=me.world_size, timeout=TIMEOUT
        )
        train(me)
    except RuntimeError as error:  # How torch says that a peer has closed its connection.
        print(f"rank {me.rank} leaves generation {generation}: {str(error)[:150]}", flush=True)
    finally:
        advance(store, generation)
        if dist.is_initialized():
            dist.destroy_process_group()


def train(me: Me) -> None:
    """Run the loop until told to stop; raises RuntimeError when a peer is gone."""
    part = STEP_SECONDS / 10
    blocks = [Block(me.work, part, 2 * part, False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(FEATURES, 1)))
    optimizer = TimedSGD(model.parameters(), me.work, part)
    loader = DataLoader(Batches(ENDLESS, me.work, 2 * part), batch_size=None, shuffle=False)
    me.pauses.take()
    began = time.perf_counter()
    for inputs, targets in loader:
        assert len(inputs) == BATCH
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        paused = me.pauses.take()
        me.recorder.write(now - began, paused, me.empty_loop(paused.all_seconds))
        began = now
        if me.stop.exists():
            return


def _ready(generation: int, rank: int) -> str:
    return f"ready/{generation}/{rank}"


if __name__ == "__main__":
    main()

"""One gloo DDP rank that runs blocks of steps with and without the join; see __main__.py.

live.py BLOCKS STEPS, under torchrun. Rank 0 prints the medians of each pair of blocks, in
milliseconds per step, as JSON: {"pairs": [[without, with], ...]}.
"""

import json
import random
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rank_probe.join import store
from rank_probe.join.join import GroupToJoin, Join
from rank_probe.join.store import PlaceInJob
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.process.identity import Identity
from rank_probe.torch_hooks import backward, collectives, parallel
from rank_probe.torch_hooks.store import opener

# A fifth of the real one.
PERIOD_SECONDS = 0.2
FEATURES = 256


def main() -> None:
    """Train in blocks."""
    blocks, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store.PERIODS = ((ranks, PERIOD_SECONDS),)  # more often than real
    timeline = Timeline(automatic=False)
    for module in (backward, collectives, parallel):
        module.attach(timeline)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(FEATURES, FEATURES) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, FEATURES)
    me = Identity("bench", "all", rank, ranks, str(rank), "0", attempt=0)
    order = random.Random(1)

    def step() -> float:
        started = time.perf_counter()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        timeline.tape.note(events.STEP)
        return (time.perf_counter() - started) * 1e3

    def block(with_join: bool) -> float:
        each = Join({}, lambda: None)
        connect = opener("", {})
        if with_join:
            each.begin(GroupToJoin(connect, PlaceInJob(rank, ranks), timeline.steps, lambda: me))
        dist.barrier()
        times = [step() for _ in range(steps)]
        each.stop()
        return statistics.median(times)

    for _ in range(20):
        step()
    pairs = []
    for _ in range(blocks):
        first = order.random() < 0.5
        one, other = block(first), block(not first)
        pairs.append([other, one] if first else [one, other])
    if rank == 0:
        print(json.dumps({"pairs": pairs}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

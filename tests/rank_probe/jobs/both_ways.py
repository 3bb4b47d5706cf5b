"""One rank that times the same loop twice: automatically and by hand. Run by test_ranks.py.

Takes the arguments of demo/train.py and prints one JSON line a rank.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from demo import train
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, collectives, training_loop
from rank_probe.wire.stages import DATA, FORWARD, OPTIMIZER, STAGES
from tests.rank_probe.launch import leave


def main() -> None:
    """Train a few steps and say what each way measured."""
    options = train.arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seconds = train.seconds_by_stage(options, rank)
    by_hand, automatic = Timeline(automatic=False), Timeline(automatic=True)
    patches = [
        backward.attach(by_hand),
        backward.attach(automatic),
        collectives.attach(by_hand),
        collectives.attach(automatic),
        training_loop.attach(automatic),
    ]
    block = train.Block(time.sleep, seconds["forward"], seconds["backward"], normalize=True)
    model = DistributedDataParallel(nn.Sequential(block, nn.Linear(train.FEATURES, 1)))
    optimizer = train.TimedSGD(model.parameters(), time.sleep, seconds["optimizer"])
    batches = iter(
        DataLoader(train.Batches(options.steps, time.sleep, seconds["data"]), batch_size=None)
    )
    started = time.perf_counter()
    for _ in range(options.steps):
        by_hand.tape.note(events.ENTER | DATA)
        inputs, targets = next(batches)
        by_hand.tape.note(events.LEAVE)
        by_hand.tape.note(events.ENTER | FORWARD)
        loss = nn.functional.mse_loss(model(inputs), targets)
        by_hand.tape.note(events.LEAVE)
        loss.backward()
        by_hand.tape.note(events.ENTER | OPTIMIZER)
        optimizer.step()
        by_hand.tape.note(events.LEAVE)
        optimizer.zero_grad()
        time.sleep(seconds["after_optimizer"])
        by_hand.tape.note(events.STEP)
    automatic.finish()
    wall = time.perf_counter() - started
    for patch in reversed(patches):
        patch.undo()
    answer = {"rank": rank, "wall": wall}
    for name, timeline in (("by_hand", by_hand), ("automatic", automatic)):
        totals = timeline.steps.totals()
        per_step = [nanoseconds / 1e9 / totals.steps for nanoseconds in totals.nanoseconds]
        answer[name] = {"steps": totals.steps} | dict(zip(STAGES, per_step, strict=True))  # type: ignore[assignment]
    Path(os.environ["ANSWERS"], f"{rank}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()

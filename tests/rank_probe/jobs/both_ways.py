"""One rank that times the same loop twice: automatically and by hand. Run by test_ranks.py.

both_ways.py STEPS LATE_RANK PLACE...: the late rank is so in each place in turn. Leaves
ANSWERS/<rank>.json.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from demo.train import FEATURES, SHARE, Batches, Block, TimedSGD
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, collectives, training_loop
from rank_probe.wire.stages import DATA, FORWARD, OPTIMIZER, STAGES
from tests.rank_probe.launch import leave

STEP_SECONDS, DELAY = 0.2, 0.1


def train(place: str, steps: int, late: bool) -> dict[str, Any]:
    """Train a few steps with the delay in *place*, and say what each way measured."""
    seconds = {stage: share * STEP_SECONDS for stage, share in SHARE.items()}
    seconds[place] += DELAY * late
    by_hand, automatic = Timeline(automatic=False), Timeline(automatic=True)
    patches = [
        backward.attach(by_hand),
        backward.attach(automatic),
        collectives.attach(by_hand),
        collectives.attach(automatic),
        training_loop.attach(automatic),
    ]
    note = by_hand.tape.note
    block = Block(time.sleep, seconds["forward"], seconds["backward"], normalize=True)
    model = DistributedDataParallel(nn.Sequential(block, nn.Linear(FEATURES, 1)))
    optimizer = TimedSGD(model.parameters(), time.sleep, seconds["optimizer"])
    batches = iter(DataLoader(Batches(steps, time.sleep, seconds["data"]), batch_size=None))
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        note(events.ENTER | DATA)
        inputs, targets = next(batches)
        note(events.LEAVE)
        note(events.ENTER | FORWARD)
        loss = nn.functional.mse_loss(model(inputs), targets)
        note(events.LEAVE)
        loss.backward()
        note(events.ENTER | OPTIMIZER)
        optimizer.step()
        note(events.LEAVE)
        optimizer.zero_grad()
        time.sleep(seconds["after_optimizer"])
        note(events.STEP)
    automatic.finish()
    answer: dict[str, Any] = {"wall": time.perf_counter() - started}
    for patch in reversed(patches):
        patch.undo()
    for name, timeline in (("by_hand", by_hand), ("automatic", automatic)):
        totals = timeline.steps.totals()
        per_step = [nanoseconds / 1e9 / totals.steps for nanoseconds in totals.nanoseconds]
        answer[name] = {"steps": totals.steps} | dict(zip(STAGES, per_step, strict=True))
    return answer


def main() -> None:
    """Train once for each place; the first time pays for what is done once."""
    steps, late_rank, *places = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    answers = {}
    for place in (places[0], *places):
        answers[place] = train(place, int(steps), rank == int(late_rank))
    Path(os.environ["ANSWERS"], f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()

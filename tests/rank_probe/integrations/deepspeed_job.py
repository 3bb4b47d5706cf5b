"""One rank of DeepSpeed trainings, one for each case; run by test_frameworks.py.

Takes a directory for checkpoints and the cases, `zeroN-stage`. Each case is a job of its own; the
second rank is late in that stage.
"""

import os
import sys
from collections.abc import Callable
from time import sleep
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader

from demo.train import FEATURES, Batches, Block, TimedSGD
from rank_probe.integrations.deepspeed import attach, detach
from tests.rank_probe.integrations.test_frameworks import ACCUMULATED, DELAY, EVERY, STEPS
from tests.rank_probe.launch import leave


def engine(zero: int, late: dict[str, float]) -> Any:
    """Return a small model under DeepSpeed, slow where *late* says so."""
    forward, backward = (late.get(s, 0.0) / ACCUMULATED for s in ("forward", "backward"))
    block = Block(sleep, forward, backward, normalize=True)
    model = nn.Sequential(block, nn.Linear(FEATURES, 1))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATED,
        "steps_per_print": None,
        "zero_optimization": {"stage": zero},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = TimedSGD(model.parameters(), sleep, late.get("optimizer", 0.0))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.checkpoint_engine.create = slow(
        engine.checkpoint_engine.create, late.get("checkpoint", 0.0)
    )
    return engine


def slow(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return *function*, taking *seconds* more."""

    def slowed(*args: Any, **kwargs: Any) -> Any:
        sleep(seconds)
        return function(*args, **kwargs)

    return slowed


def train(zero: int, late: dict[str, float], directory: str) -> None:
    """Train for a few steps."""
    model = engine(zero, late)
    batches = Batches(STEPS * ACCUMULATED, sleep, late.get("data", 0.0) / ACCUMULATED)
    attach()
    torch.distributed.barrier()  # A rank that starts later is waited for in the first step.
    for index, (inputs, targets) in enumerate(DataLoader(batches, batch_size=None), start=1):
        model.backward(nn.functional.mse_loss(model(inputs), targets))
        model.step()
        if index % ACCUMULATED:
            continue
        sleep(late.get("other", 0.0))
        if index // ACCUMULATED % EVERY == 0:
            model.save_checkpoint(directory)
    detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Only its inference all-reduce uses this; building it takes a compiler half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name in sys.argv[2:]:
        level, stage = name.removeprefix("zero").split("-")
        os.environ["RANKSKEW_JOB_ID"] = name
        os.environ["RANK_PROBE"] = "0" if stage == "off" else "1"
        train(int(level), {stage: DELAY} if os.environ["RANK"] == "1" else {}, sys.argv[1])
    leave()

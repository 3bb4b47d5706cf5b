"""One rank that trains with DeepSpeed once per case; started by test_frameworks.py.

Arguments: the cases, `zeroN-place`. Each case is a separate job, with rank 1 late in that place.
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

from demo.train import Batches
from rank_probe.integrations.deepspeed import attach, detach
from tests.rank_probe.jobs.parallel_arms import Seconds, network, planted
from tests.rank_probe.jobs.test_frameworks import ACCUMULATED, EVERY, STEPS
from tests.rank_probe.launch import leave


def engine(zero: int, seconds: Seconds) -> Any:
    """Return a small model under DeepSpeed.

    The engine's own work is delayed too: averaging gradients and the partitioned update.
    """
    half = seconds | {"backward": seconds["backward"] / 2}
    model = network(half, 1 / ACCUMULATED, normalize=True)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATED,
        "steps_per_print": None,
        "zero_optimization": {"stage": zero},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.allreduce_gradients = slow(engine.allreduce_gradients, half["backward"] / ACCUMULATED)
    engine.optimizer.step = slow(engine.optimizer.step, seconds["optimizer"])
    engine.checkpoint_engine.create = slow(engine.checkpoint_engine.create, seconds["checkpoint"])
    return engine


def slow(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return *function*, taking *seconds* more."""

    def slowed(*args: Any, **kwargs: Any) -> Any:
        sleep(seconds)
        return function(*args, **kwargs)

    return slowed


def train(zero: int, seconds: Seconds) -> None:
    """Train for a few steps."""
    model = engine(zero, seconds)
    batches = Batches(STEPS * ACCUMULATED, sleep, seconds["data"] / ACCUMULATED)
    attach()
    torch.distributed.barrier()  # Otherwise the first step waits for the later rank.
    for index, (inputs, targets) in enumerate(DataLoader(batches, batch_size=None), start=1):
        model.backward(nn.functional.mse_loss(model(inputs), targets))
        model.step()
        if index % ACCUMULATED:
            continue
        sleep(seconds["other"])
        if index // ACCUMULATED % EVERY == 0:
            model.save_checkpoint(os.environ["CHECKPOINTS"])
    detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Only the inference all-reduce uses this extension, and compiling it takes half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name in sys.argv[1:]:
        level, place = name.removeprefix("zero").split("-", 1)
        os.environ["RANKSKEW_JOB_ID"] = name
        os.environ["RANK_PROBE"] = "0" if place == "off" else "1"
        train(int(level), planted(place if os.environ["RANK"] == "1" else ""))
    leave()

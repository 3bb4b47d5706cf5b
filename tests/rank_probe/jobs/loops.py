"""Training loops that are not one fetch, forward, backward and step; for loops_job.py.

Each function makes a loop of that many *steps*, in which each stage takes its *seconds* a step.
"""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from demo.train import FEATURES, Batch, Batches, TimedSGD
from tests.rank_probe.torch_hooks.parallel_job import (
    MICRO_BATCHES,
    Seconds,
    fully_sharded,
    layers,
    loss_of,
)

Loop = Callable[[], None]

# Micro-batches of a step after the other; a step has this many on average.
VARYING, MEAN_MICRO_BATCHES = (1, 4, 2, 3), 2.5


def network(seconds: Seconds, share: float = 1.0) -> nn.Sequential:
    """Return a model whose compute takes the *share* of a step's seconds."""
    return nn.Sequential(*layers(seconds, share), nn.Linear(FEATURES, 1))


def replicated(seconds: Seconds, share: float = 1.0) -> DistributedDataParallel:
    """Return the same under DDP."""
    return DistributedDataParallel(network(seconds, share))


def loader(seconds: Seconds, batches: int, share: float = 1.0) -> DataLoader[Batch]:
    """Return a loader of that many batches, each read in the *share* of a step's seconds."""
    return DataLoader(Batches(batches, sleep, seconds["data"] * share), batch_size=None)


def sgd(model: nn.Module, seconds: Seconds, share: float = 1.0) -> TimedSGD:
    """Return an optimizer whose step takes the *share* of a step's seconds."""
    return TimedSGD(model.parameters(), sleep, seconds["optimizer"] * share)


def update(optimizer: TimedSGD, seconds: Seconds) -> None:
    """Step, and take the time of what comes after it."""
    optimizer.step()
    optimizer.zero_grad()
    sleep(seconds["other"])


def varying_accumulation(seconds: Seconds, steps: int) -> Loop:
    """One to four micro-batches a step."""
    share = 1 / MEAN_MICRO_BATCHES
    model = replicated(seconds, share)
    optimizer = sgd(model, seconds)
    counts = [VARYING[step % len(VARYING)] for step in range(steps)]
    batches = iter(loader(seconds, sum(counts), share))

    def loop() -> None:
        for count in counts:
            with model.no_sync():
                for batch in islice(batches, count - 1):
                    loss_of(model, batch).backward()
            loss_of(model, next(batches)).backward()
            update(optimizer, seconds)

    return loop


def distillation(seconds: Seconds, steps: int) -> Loop:
    """A frozen teacher, whose output the student learns; half of forward is the teacher's."""
    teacher = network(seconds, 0.5).requires_grad_(False).eval()
    student = replicated(seconds | {"forward": seconds["forward"] / 2})
    optimizer = sgd(student, seconds)
    batches = loader(seconds, steps)

    def loop() -> None:
        for inputs, _ in batches:
            with torch.no_grad():
                wanted = teacher(inputs)
            nn.functional.mse_loss(student(inputs), wanted).backward()
            update(optimizer, seconds)

    return loop


def several_loaders(seconds: Seconds, steps: int) -> Loop:
    """Two loaders side by side, a third one later in the step, and that of an evaluation."""
    model = replicated(seconds, 0.5)
    optimizer = sgd(model, seconds)
    one, another, third = (loader(seconds, steps, 1 / 3) for _ in range(3))
    held_out = loader(seconds | {"data": 0.0}, 2)

    def loop() -> None:
        unlabelled = iter(third)
        for step, (batch, _) in enumerate(zip(one, another, strict=True), start=1):
            loss = loss_of(model, batch)
            (loss + loss_of(model, next(unlabelled))).backward()
            update(optimizer, seconds)
            if step % 2 == 0:
                with torch.no_grad():
                    for inputs, _ in held_out:
                        model.module[-1](inputs)

    return loop


def optimizer_in_backward(seconds: Seconds, steps: int) -> Loop:
    """An optimizer for each parameter, which steps as soon as its gradient was reduced."""
    model = fully_sharded(seconds)
    parameters = list(model.parameters())
    each_seconds = seconds["optimizer"] / len(parameters)
    optimizers = {each: TimedSGD([each], sleep, each_seconds) for each in parameters}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in parameters:
        each.register_post_accumulate_grad_hook(step)
    batches = loader(seconds, steps)

    def loop() -> None:
        for batch in batches:
            loss_of(model, batch).backward()
            sleep(seconds["other"])

    return loop


class SlowToCopy:
    """A part of the training's state that takes *seconds* to copy."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        sleep(self._seconds)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back: there is none."""


def async_save(seconds: Seconds, steps: int) -> Loop:
    """A checkpoint with every step, of which training waits for the copy and the one before."""
    from torch.distributed.checkpoint import state_dict_saver

    model = replicated(seconds)
    optimizer = sgd(model, seconds)
    batches = loader(seconds, steps)
    # Of its own: the thread that writes has collectives beside those of training.
    group = dist.new_group()

    def save(step: int) -> Any:
        state = {"model": model.module.state_dict(), "own": SlowToCopy(seconds["checkpoint"])}
        folder = f"{os.environ['CHECKPOINTS']}/{step}"
        return state_dict_saver.async_save(state, checkpoint_id=folder, process_group=group)

    def loop() -> None:
        saved: Any = None
        for step, batch in enumerate(batches):
            loss_of(model, batch).backward()
            update(optimizer, seconds)
            if saved is not None:
                saved.result()
            saved = save(step)
        saved.result()

    return loop


def titan_shaped(seconds: Seconds, steps: int) -> Loop:
    """The shape of torchtitan's: a step's micro-batches are read first, their tokens summed up."""
    share = 1 / MICRO_BATCHES
    model = fully_sharded(seconds, share)
    optimizer = sgd(model, seconds)

    def batch_generator(batches: DataLoader[Batch]) -> Iterator[Batch]:
        iterator = iter(batches)
        while True:
            yield next(iterator)

    read = batch_generator(loader(seconds, steps * MICRO_BATCHES, share))

    def train_step() -> None:
        optimizer.zero_grad()
        micro_batches = [next(read) for _ in range(MICRO_BATCHES)]
        dist.all_reduce(torch.tensor(sum(inputs.numel() for inputs, _ in micro_batches)))
        for batch in micro_batches:
            loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sleep(seconds["other"])

    def loop() -> None:
        for _ in range(steps):
            train_step()

    return loop

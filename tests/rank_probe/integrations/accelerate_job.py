"""One rank of an Accelerate training, run anew for each planted fault; run by test_frameworks.py.

Takes the names of the cases. Each case is a job of its own.
"""

import os
import sys
from collections.abc import Iterator
from time import sleep
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rank_probe
from demo.train import FEATURES, Block, TimedSGD
from rank_probe.integrations.accelerate import attach
from tests.rank_probe.launch import leave

BATCHES, ROWS, EVERY = 6, 4, 2  # evaluation and checkpoints after every second batch
DELAY, HEALTHY = 0.08, 0.004
FAULTS = ("data", "forward", "backward", "optimizer", "other", "eval", "checkpoint")
SELDOM = ("eval", "checkpoint")  # So twice as late.


class Rows(Dataset[Tensor]):
    """Rows of a data set, as many as the two ranks need, each read in its share of *seconds*."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return BATCHES * ROWS * 2

    def __getitem__(self, index: int) -> Tensor:
        sleep(self._seconds / ROWS)
        return torch.randn(FEATURES)


class Stream(IterableDataset[Tensor]):
    """The same rows one after the other: Accelerate reads them on rank 0 for all."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return (self._rows[index] for index in range(len(self._rows)))


class SlowToSave:
    """A part of the training's state that takes *seconds* to save."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def state_dict(self) -> dict[str, float]:
        """Return the state."""
        sleep(self._seconds)
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take it back: there is none."""


def late_rank(case: str) -> int:
    """Return the rank that is slow: the one that reads where only one does."""
    return 0 if case == "dispatch" else 1


def train(case: str) -> None:
    """Train once, with the fault that *case* names."""
    os.environ["RANKSKEW_JOB_ID"] = case
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2 if case == "accumulate" else 1,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=case == "dispatch"),
    )
    seconds = dict.fromkeys(FAULTS, HEALTHY)
    if accelerator.process_index == late_rank(case):
        seconds[case if case in FAULTS else "data"] += DELAY * (1 + (case in SELDOM))
    rows = Rows(seconds["data"])
    block = Block(sleep, seconds["forward"], seconds["backward"], normalize=True)
    module = nn.Sequential(block, nn.Linear(FEATURES, 1))
    parts = accelerator.prepare(
        module,
        TimedSGD(module.parameters(), sleep, seconds["optimizer"]),
        DataLoader(Stream(rows) if case == "dispatch" else rows, batch_size=ROWS),
        DataLoader(Rows(0.0), batch_size=ROWS),
    )
    accelerator.register_for_checkpointing(SlowToSave(seconds["checkpoint"]))
    with attach(accelerator):
        loop(accelerator, seconds, *parts)
    accelerator.free_memory()


def loop(
    accelerator: Accelerator,
    seconds: dict[str, float],
    model: Any,
    optimizer: Any,
    loader: Any,
    validation: Any,
) -> None:
    """Train as Accelerate's manual shows it."""
    for index, batch in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        sleep(seconds["other"])
        if index % EVERY == 0:
            with rank_probe.stage("eval"):
                evaluate(accelerator, model, validation, seconds["eval"])
            accelerator.save_state(os.environ["CHECKPOINTS"])


def evaluate(accelerator: Accelerator, model: Any, loader: Any, seconds: float) -> None:
    """Gather one batch's metric from all ranks."""
    with torch.no_grad():
        batch = next(iter(loader))
        sleep(seconds)
        accelerator.gather_for_metrics(batch.mean(dim=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        train(name)
    leave()

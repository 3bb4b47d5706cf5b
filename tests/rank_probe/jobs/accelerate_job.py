"""One rank that trains with Accelerate once per case; started by test_frameworks.py.

Arguments: the names of the cases. Each case is a separate job; its name says where the delay is.
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
from demo.train import FEATURES, TimedSGD
from rank_probe.integrations.accelerate import attach
from tests.rank_probe.jobs.parallel_arms import Seconds, SlowState, network, planted
from tests.rank_probe.jobs.test_frameworks import EVERY, STEPS
from tests.rank_probe.launch import leave

ROWS = 4
LATE_IN_DATA = ("accumulate", "dispatch")


class Rows(Dataset[Tensor]):
    """Enough rows for two ranks; reading one takes its share of a batch's *seconds*."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return STEPS * ROWS * 2

    def __getitem__(self, index: int) -> Tensor:
        sleep(self._seconds / ROWS)
        return torch.randn(FEATURES)


class Stream(IterableDataset[Tensor]):
    """The same rows as a stream, which Accelerate reads on rank 0 for all ranks."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return (self._rows[index] for index in range(len(self._rows)))


def train(case: str) -> None:
    """Train once, as *case* says."""
    os.environ["RANKSKEW_JOB_ID"] = case
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2 if case == "accumulate" else 1,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=case == "dispatch"),
    )
    # With `dispatch` only rank 0 reads.
    late_rank = 0 if case == "dispatch" else 1
    place = "data" if case in LATE_IN_DATA else case
    seconds = planted(place if accelerator.process_index == late_rank else "")
    rows = Rows(seconds["data"])
    module = network(seconds, normalize=True)
    parts = accelerator.prepare(
        module,
        TimedSGD(module.parameters(), sleep, seconds["optimizer"]),
        DataLoader(Stream(rows) if case == "dispatch" else rows, batch_size=ROWS),
        DataLoader(Rows(0.0), batch_size=ROWS),
    )
    accelerator.register_for_checkpointing(SlowState(seconds["checkpoint"]))
    with attach(accelerator):
        loop(accelerator, seconds, *parts)
    accelerator.free_memory()


def loop(
    accelerator: Accelerator,
    seconds: Seconds,
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    validation: Any,
) -> None:
    """Train as Accelerate's manual shows it."""
    for index, batch in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        sleep(seconds["other"])
        if index % EVERY == 0:
            with rank_probe.stage("eval"), torch.no_grad():
                metric = next(iter(validation)).mean(dim=1)
                sleep(seconds["eval"])
                accelerator.gather_for_metrics(metric)
            accelerator.save_state(os.environ["CHECKPOINTS"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        train(name)
    leave()

"""A small training with one line that is slow on one rank.

    torchrun --nproc-per-node 4 -m rank_probe late_lines_job.py PLACE FOLDER [--steps N]

PLACE is one of PLACES, or `none`. A step computes by sleeping 60 ms, so four ranks fit on two
cores. Each place has its slow line marked `planted: PLACE`. At the end each rank writes to FOLDER
how often its stack was sampled, and in what share of these the loop was fetching, by stage.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate

from rank_probe import api
from rank_probe.wire.stages import STAGES

PLACES = ("dataset", "collate", "iterator", "loss", "logging")
LATE_RANK = 2
DELAY = 0.03
DATA, FORWARD, BACKWARD, OPTIMIZER = 0.01, 0.02, 0.02, 0.01
FEATURES = 8

log = logging.getLogger("training")
late = ""  # the place that is slow on this rank


class Corpus(Dataset[Tensor]):
    """Samples that take a while to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(DATA)
        if late == "dataset":
            time.sleep(DELAY)  # planted: dataset
        return torch.randn(FEATURES)


def collate(samples: list[Tensor]) -> Tensor:
    """Make a batch."""
    batch: Tensor = default_collate(samples)
    if late == "collate":
        time.sleep(DELAY)  # planted: collate
    return batch


class Stream:
    """An iterator of the user's own, without a DataLoader."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensor:
        time.sleep(DATA)
        if late == "iterator":
            time.sleep(DELAY)  # planted: iterator
        return torch.randn(1, FEATURES)


class Busy(torch.autograd.Function):
    """Pass a tensor on, and take a while on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD)
        return gradients[0]


class Model(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        y: Tensor = Busy.apply(self.layer(x))  # type: ignore[no-untyped-call]
        return y


def loss_of(output: Tensor) -> Tensor:
    """Compute a loss in Python."""
    if late == "loss":
        time.sleep(DELAY)  # planted: loss
    return output.square().mean()


class SlowHandler(logging.Handler):
    """A log that somebody keeps on a slow file system."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a while on the late rank."""
        if late == "logging":
            time.sleep(DELAY)  # planted: logging


def train(steps: int, own_iterator: bool) -> None:
    """Train for that many steps."""
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches: Any = Stream() if own_iterator else DataLoader(Corpus(), 1, collate_fn=collate)
    for step, batch in zip(range(steps), batches, strict=False):
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(OPTIMIZER)
        log.info("step %d", step)


def tell(folder: Path) -> None:
    """Write what this rank's sampler has counted."""
    assert api._probe is not None, "start it with -m rank_probe"
    sampled = api._probe.stacks
    shares = {stage: sampled.iterating_share(stage) for stage in STAGES}
    told = {"samples": sampled.samples, "fetching": shares}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told))


def main() -> None:
    """Join the process group, train, leave."""
    global late
    parser = argparse.ArgumentParser()
    parser.add_argument("place", choices=(*PLACES, "none"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if os.environ["RANK"] == str(LATE_RANK):
        late = options.place
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(SlowHandler())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options.steps, own_iterator=options.place == "iterator")
    tell(options.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

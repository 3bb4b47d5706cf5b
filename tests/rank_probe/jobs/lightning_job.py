"""One rank that trains with Lightning once per case; started by test_frameworks.py.

Arguments: the Lightning package, then the names of the cases. Each case is a separate job; its name
says where the delay is.
"""

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from time import sleep
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from demo.train import FEATURES, TimedSGD
from rank_probe.integrations.lightning import RankskewCallback
from tests.rank_probe.jobs.parallel_arms import Seconds, network, planted
from tests.rank_probe.jobs.test_frameworks import EVERY, STEPS
from tests.rank_probe.launch import leave

ROWS = 4
LATE_IN_FORWARD = ("streamed", "accumulate", "several_optimizers", "raises")
Batch = dict[str, Tensor]

pl: Any = import_module(sys.argv[1])


def batch(seconds: float) -> Batch:
    """Return a batch that took *seconds* to read; a quarter of its tokens is padding."""
    sleep(seconds)
    mask = torch.ones(ROWS, FEATURES, dtype=torch.long)
    mask[:, FEATURES * 3 // 4 :] = 0
    return {"input_ids": torch.randn(ROWS, FEATURES), "attention_mask": mask}


class Sized(Dataset[Batch]):
    """Batches that the Trainer can count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return STEPS * 2  # The two ranks share them.

    def __getitem__(self, index: int) -> Batch:
        return batch(self._seconds)


class Streamed(IterableDataset[Batch]):
    """Batches of unknown number, which the Trainer fetches one ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __iter__(self) -> Any:
        return (batch(self._seconds) for _ in range(STEPS))


class Model(pl.LightningModule):  # type: ignore[misc]  # the package is an argument
    """One layer of emulated compute, slow where *seconds* says so."""

    def __init__(self, case: str, seconds: Seconds) -> None:
        super().__init__()
        self.case, self.seconds = case, seconds
        self.layers: nn.Module = network(seconds, normalize=True)

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        """Return the loss."""
        if self.case == "raises":
            raise ArithmeticError("the user's own")
        loss: Tensor = self.layers(batch["input_ids"]).square().mean()
        return loss

    def validation_step(self, batch: Batch, _index: int) -> None:
        """Evaluate nothing."""

    def on_validation_start(self) -> None:
        """Sleep for the time of an evaluation, before its first batch is fetched."""
        sleep(self.seconds["eval"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take as long as gathering the state takes."""
        sleep(self.seconds["checkpoint"])

    def configure_optimizers(self) -> Any:
        """Return the emulated optimizer."""
        return TimedSGD(self.parameters(), sleep, self.seconds["optimizer"])


class SeveralOptimizers(Model):
    """Trains its layers in turn, each with its own backward and optimizer step."""

    automatic_optimization = False

    def training_step(self, batch: Batch, _index: int) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.layers(batch["input_ids"]).square().mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        """Return one optimizer for each layer."""
        return [torch.optim.SGD(half.parameters(), lr=0.01) for half in self.layers.children()]


class AroundTheBatch(pl.Callback):  # type: ignore[misc]  # the package is an argument
    """What comes after the optimizer: logging, and a checkpoint every second batch."""

    def on_train_batch_end(self, trainer: Any, module: Model, *_: Any) -> None:
        """Take as long as logging takes, and save."""
        sleep(module.seconds["other"])
        if trainer.fit_loop.epoch_loop.batch_progress.current.ready % EVERY == 0:
            trainer.save_checkpoint(os.path.join(os.environ["CHECKPOINTS"], "model.ckpt"))


def fit(case: str, rank: int) -> None:
    """Train once, as *case* says."""
    place = "forward" if case in LATE_IN_FORWARD else case
    seconds = planted(place if rank == 1 else "")
    os.environ["RANKSKEW_JOB_ID"] = case
    model = (SeveralOptimizers if case == "several_optimizers" else Model)(case, seconds)
    data = Streamed(seconds["data"]) if case == "streamed" else Sized(seconds["data"])
    # An item is a whole batch.
    loader = DataLoader(data, batch_size=None, shuffle=False)
    validation = DataLoader(Sized(0.0), batch_size=None, shuffle=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=1,
        accumulate_grad_batches=2 if case == "accumulate" else 1,
        val_check_interval=EVERY,
        limit_val_batches=1,
        callbacks=[RankskewCallback(), AroundTheBatch()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with suppress(ArithmeticError):
        trainer.fit(model, loader, validation)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        # Lightning's own launcher sets LOCAL_RANK for the second process, but not RANK.
        fit(name, int(os.environ.get("LOCAL_RANK", "0")))
    leave()

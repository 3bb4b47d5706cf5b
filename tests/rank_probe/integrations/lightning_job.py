"""One rank of a Lightning training, fitted anew for each planted fault; run by test_frameworks.py.

Takes the package to train with and the names of the cases. Each case is a job of its own.
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

from demo.train import FEATURES, Block
from rank_probe.integrations.lightning import RankskewCallback
from tests.rank_probe.launch import leave

BATCHES, ROWS, EVERY = 6, 4, 2  # validation and checkpoints after every second batch
FAULT_RANK, DELAY, HEALTHY = 1, 0.08, 0.004
FAULTS = ("data", "forward", "backward", "optimizer", "other", "eval", "checkpoint")
SELDOM = ("eval", "checkpoint")  # So twice as late.
Batch = dict[str, Tensor]

pl: Any = import_module(sys.argv[1])


class SlowUpdate(torch.optim.SGD):
    """SGD whose update takes *seconds* more once its closure has made the gradients."""

    def __init__(self, params: Any, seconds: float) -> None:
        super().__init__(params, lr=0.01)
        self._seconds = seconds

    def step(self, closure: Any = None) -> Any:
        """Step."""
        loss = super().step(closure)
        sleep(self._seconds)
        return loss


class TwoEvaluations(SlowUpdate):
    """Has its closure called more than once a step, as LBFGS has."""

    def step(self, closure: Any = None) -> Any:
        """Step."""
        closure()
        return super().step(closure)


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
        return BATCHES * 2  # The two ranks share them.

    def __getitem__(self, index: int) -> Batch:
        return batch(self._seconds)


class Streamed(IterableDataset[Batch]):
    """Batches without a known number: the Trainer asks for each one batch ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __iter__(self) -> Any:
        return (batch(self._seconds) for _ in range(BATCHES))


class Model(pl.LightningModule):  # type: ignore[misc]  # the package is an argument
    """One layer of emulated compute, slow where *seconds* says so."""

    def __init__(self, case: str, seconds: dict[str, float]) -> None:
        super().__init__()
        self.case, self.seconds = case, seconds
        block = Block(sleep, seconds["forward"], seconds["backward"], normalize=True)
        self.layers = nn.Sequential(block, nn.Linear(FEATURES, 1))

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        """Return the loss."""
        if self.case == "raises":
            raise ArithmeticError("the user's own")
        loss: Tensor = self.layers(batch["input_ids"]).square().mean()
        return loss

    def validation_step(self, batch: Batch, _index: int) -> None:
        """Take as long as evaluating takes."""
        sleep(self.seconds["eval"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take as long as gathering the state takes."""
        sleep(self.seconds["checkpoint"])

    def configure_optimizers(self) -> Any:
        """Return the emulated optimizer."""
        optimizer = TwoEvaluations if self.case == "two_evaluations" else SlowUpdate
        return optimizer(self.parameters(), self.seconds["optimizer"])


class TwoOptimizers(Model):
    """Trains its two halves by turns, each with a backward and a step of its own."""

    automatic_optimization = False

    def training_step(self, batch: Batch, _index: int) -> None:  # type: ignore[override]
        """Step both optimizers."""
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.layers(batch["input_ids"]).square().mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        """Return one optimizer for each half."""
        return [torch.optim.SGD(half.parameters(), lr=0.01) for half in self.layers]


class AroundTheBatch(pl.Callback):  # type: ignore[misc]  # the package is an argument
    """What comes after the optimizer: logging, and a checkpoint every second batch."""

    def on_train_batch_end(self, trainer: Any, module: Model, *_: Any) -> None:
        """Take as long as logging takes, and save."""
        sleep(module.seconds["other"])
        if trainer.fit_loop.epoch_loop.batch_progress.current.ready % EVERY == 0:
            trainer.save_checkpoint(os.path.join(os.environ["CHECKPOINTS"], "model.ckpt"))


def fit(case: str, rank: int) -> None:
    """Train once, with the fault that *case* names; one that names none is slow in forward."""
    seconds = dict.fromkeys(FAULTS, HEALTHY)
    if rank == FAULT_RANK:
        seconds[case if case in FAULTS else "forward"] += DELAY * (1 + (case in SELDOM))
    os.environ["RANKSKEW_JOB_ID"] = case
    model = (TwoOptimizers if case == "two_optimizers" else Model)(case, seconds)
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
        # Lightning's own launcher starts a second process with a LOCAL_RANK, and sets no RANK.
        fit(name, int(os.environ.get("LOCAL_RANK", "0")))
    leave()

"""What test_relaunch runs: a script that leaves its other rank to Lightning."""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tests.rank_probe.launch import leave

BATCHES = 4


class Model(LightningModule):  # type: ignore[misc]  # mypy does not read Lightning
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).sum()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = TensorDataset(torch.ones(2 * 2 * BATCHES, 2))
    trainer.fit(Model(), DataLoader(rows, batch_size=2))
    # At once: both ranks write to the same pipe.
    os.write(1, f"rank {trainer.global_rank} {sys.argv[1:]}\n".encode())
    leave()

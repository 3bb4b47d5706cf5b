"""One rank of Hugging Face Trainer runs, one for each case; run by test_frameworks.py.

Takes a directory for checkpoints and the names of the cases. Each case is a job of its own; the
last rank is late where the case's name says.
"""

import os
import sys
from time import sleep
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from demo.train import EmulatedCompute, TimedSGD
from rank_probe import api
from rank_probe.integrations.transformers import RankskewCallback
from tests.rank_probe.integrations.test_frameworks import (
    ACCUMULATED,
    DELAY,
    EVALUATED,
    LENGTH,
    PADDING,
    ROWS,
    STEPS,
)
from tests.rank_probe.launch import leave

ORIGINALS = {name: vars(Trainer)[name] for name in ("evaluate", "_evaluate", "_save_checkpoint")}


class Sentences(Dataset[dict[str, Tensor]]):
    """Random tokens with a padded end, each row read in *seconds*."""

    def __init__(self, rows: int, seconds: float) -> None:
        self._rows, self._seconds = rows, seconds

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        sleep(self._seconds)
        tokens = torch.randint(64, (LENGTH,))
        mask = torch.ones(LENGTH, dtype=torch.long)
        mask[LENGTH - PADDING :] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


class SlowModel(GPT2LMHeadModel):  # type: ignore[misc]  # transformers' bases are untyped
    """A tiny GPT-2, slow where *late* says so."""

    late: dict[str, float]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return GPT-2's output."""
        output = super().forward(*args, **kwargs)
        if not self.training:
            sleep(self.late.get("eval", 0.0))
            return output
        forward, backward = (self.late.get(s, 0.0) / ACCUMULATED for s in ("forward", "backward"))
        output.loss = EmulatedCompute.apply(output.loss, sleep, forward, backward)  # type: ignore[no-untyped-call]
        return output


class SlowDisk(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints take *checkpoint_seconds* more."""

    checkpoint_seconds = 0.0

    def _save_rng_state(self, output_dir: str) -> None:
        sleep(self.checkpoint_seconds)
        super()._save_rng_state(output_dir)


class Metrics(TrainerCallback):  # type: ignore[misc]
    """Somebody else's callback, which takes its time after each step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin together: a rank that starts later is waited for in the first step."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take as long as logging takes."""
        sleep(self._seconds)


def arguments(directory: str) -> TrainingArguments:
    """Return two batches a step, evaluation and a checkpoint every second step."""
    return TrainingArguments(
        output_dir=directory,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=EVALUATED,
        save_steps=EVALUATED,
        logging_steps=EVALUATED,
        label_names=["labels"],
        remove_unused_columns=False,
        disable_tqdm=True,
    )


def train(case: str, directory: str, ranks: int) -> None:
    """Train a model from scratch."""
    place = "checkpoint" if case == "unchanged" else case
    late = {place: DELAY} if int(os.environ["RANK"]) == ranks - 1 else {}
    model = SlowModel(GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=LENGTH, vocab_size=64))
    model.late = late
    rows = ROWS * ACCUMULATED
    optimizer = TimedSGD(model.parameters(), sleep, late.get("optimizer", 0.0))
    trainer = SlowDisk(
        model,
        arguments(f"{directory}/{case}"),
        data_collator=default_data_collator,
        # One epoch exactly: nothing is read ahead for a step that never comes.
        train_dataset=Sentences(rows * STEPS * ranks, late.get("data", 0.0) / rows),
        eval_dataset=Sentences(ROWS * ranks, 0.0),
        callbacks=[
            *([] if case == "unchanged" else [RankskewCallback()]),
            Metrics(late.get("other", 0.0)),
        ],
        optimizers=(optimizer, None),
    )
    trainer.checkpoint_seconds = 2 * late.get("checkpoint", 0.0)
    trainer.train()


def run(case: str, directory: str) -> None:
    """Train as *case* says, and see that the Trainer is as it was before."""
    os.environ["RANKSKEW_JOB_ID"] = case
    os.environ["RANK_PROBE"] = "0" if case == "off" else "1"
    if case in ("launched", "unchanged"):
        api.start(automatic=True)
    train(case, directory, int(os.environ["WORLD_SIZE"]))
    api.abandon()  # No clean end, unless the callback said so.
    assert [vars(Trainer)[name] for name in ORIGINALS] == list(ORIGINALS.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        run(name, sys.argv[1])
    leave()

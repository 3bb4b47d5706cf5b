"""One rank that runs the Hugging Face Trainer once per case; started by test_frameworks.py.

Arguments: the names of the cases. Each case is a separate job; the last rank is late where the
case's name says. The `grpo` cases train with TRL on a tiny random model, whose own `generate` makes
the completions; ways.py runs them.
"""

import os
import sys
from string import ascii_lowercase
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
from tests.rank_probe.jobs.parallel_arms import Seconds, planted
from tests.rank_probe.jobs.test_frameworks import ACCUMULATED, EVERY, LENGTH, PADDING, ROWS, STEPS
from tests.rank_probe.launch import leave


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
    """A tiny GPT-2, slowed by a hook on its last norm: TRL calls no module after that."""

    def __init__(self, seconds: Seconds, share: float) -> None:
        super().__init__(GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=64, vocab_size=64))
        self.seconds, self.share = seconds, share
        self.transformer.ln_f.register_forward_hook(self.compute)

    def compute(self, _module: Any, _inputs: Any, output: Any) -> Any:
        """Emulate compute; without gradients, sleep for the time of an evaluation."""
        if not torch.is_grad_enabled():
            sleep(0.0 if self.training else self.seconds["eval"])
            return output
        forward, backward = (self.seconds[each] * self.share for each in ("forward", "backward"))
        return EmulatedCompute.apply(output, sleep, forward, backward)  # type: ignore[no-untyped-call]


class SlowDisk(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints take *checkpoint_seconds* more."""

    checkpoint_seconds = 0.0

    def _save_rng_state(self, output_dir: str) -> None:
        sleep(self.checkpoint_seconds)
        super()._save_rng_state(output_dir)


class Metrics(TrainerCallback):  # type: ignore[misc]
    """A user's callback that takes time after each step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the ranks together; otherwise the first step waits for the later rank."""
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
        eval_steps=EVERY,
        save_steps=EVERY,
        logging_steps=EVERY,
        label_names=["labels"],
        remove_unused_columns=False,
        disable_tqdm=True,
    )


def train(case: str, seconds: Seconds, directory: str) -> None:
    """Train a model from scratch."""
    model = SlowModel(seconds, 1 / ACCUMULATED)
    rows, ranks = ROWS * ACCUMULATED, int(os.environ["WORLD_SIZE"])
    trainer = SlowDisk(
        model,
        arguments(directory),
        data_collator=default_data_collator,
        # Exactly one epoch: no batch is prefetched for a step that never runs.
        train_dataset=Sentences(rows * STEPS * ranks, seconds["data"] / rows),
        eval_dataset=Sentences(ROWS * ranks, 0.0),
        callbacks=[
            *([] if case == "unchanged" else [RankskewCallback()]),
            Metrics(seconds["other"]),
        ],
        optimizers=(TimedSGD(model.parameters(), sleep, seconds["optimizer"]), None),
    )
    trainer.checkpoint_seconds = seconds["checkpoint"]
    trainer.train()


def reinforce(seconds: Seconds, directory: str) -> None:
    """Train with TRL's GRPO: a batch of prompts is read, completed and rewarded in each step."""
    from datasets import Dataset as Prompts
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<eos>", "<unk>", *ascii_lowercase]
    vocabulary = {word: index for index, word in enumerate(words)}
    knows_letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    knows_letters.pre_tokenizer = pre_tokenizers.Whitespace()

    def read(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sleep(seconds["data"] / ROWS * len(rows["prompt"]))
        return rows

    prompts = [" ".join(ascii_lowercase[index % 20 :][:4]) for index in range(1000)]
    model = SlowModel(seconds, 1.0)
    GRPOTrainer(
        model,
        lambda completions, **_: [float(len(set(each))) for each in completions],
        args=GRPOConfig(
            output_dir=directory,
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=ROWS,
            num_generations=ROWS,
            max_completion_length=8,
            max_steps=STEPS,
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Prompts.from_dict({"prompt": prompts}).with_transform(read),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=knows_letters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        ),
        callbacks=[RankskewCallback(), Metrics(seconds["other"])],
        optimizers=(TimedSGD(model.parameters(), sleep, seconds["optimizer"]), None),
    ).train()


def run(case: str) -> None:
    """Train as *case* says."""
    os.environ["RANKSKEW_JOB_ID"] = case
    os.environ["RANK_PROBE"] = "0" if case == "off" else "1"
    place = "checkpoint" if case == "unchanged" else case.removeprefix("grpo-")
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    seconds, directory = planted(place if is_last else ""), f"{os.environ['CHECKPOINTS']}/{case}"
    if case in ("launched", "unchanged"):
        api.start(automatic=True)
    if case.startswith("grpo-"):
        reinforce(seconds, directory)
    else:
        train(case, seconds, directory)
    api.abandon()  # No clean end, unless the callback said so.


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        run(name)
    leave()

"""One rank of TRL's GRPO on a tiny random model, once for each place of a delay.

Takes a directory, a number of steps and the places; run by ways.py. Each place is a job
of its own. The policy's own `generate` makes the completions.
"""

import os
import sys
from time import sleep
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from demo.train import EmulatedCompute, TimedSGD
from rank_probe.integrations.transformers import RankskewCallback
from tests.rank_probe.launch import leave

DELAY = 0.15
WORDS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
LENGTH = 8


def tokenizer() -> PreTrainedTokenizerFast:
    """Return one that knows letters."""
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


class SlowModel(GPT2LMHeadModel):  # type: ignore[misc]  # transformers' bases are untyped
    """A tiny GPT-2, slow where *late* says so."""

    late: dict[str, float]

    def slow_norm(self, _module: Any, _inputs: Any, output: Any) -> Any:
        """Take the time of compute where TRL, too, computes: its loss does not call this model."""
        if not torch.is_grad_enabled():
            return output
        forward, backward = (self.late.get(stage, 0.0) for stage in ("forward", "backward"))
        return EmulatedCompute.apply(output, sleep, forward, backward)  # type: ignore[no-untyped-call]

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return completions."""
        sleep(self.late.get("generation", 0.0))
        return super().generate(*args, **kwargs)


def prompts(seconds: float) -> Dataset:
    """Return prompts, each read in that many *seconds*."""

    def read(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sleep(seconds * len(rows["prompt"]))
        return rows

    rows = [" ".join(WORDS[index % 20 : index % 20 + 4]) for index in range(1000)]
    return Dataset.from_dict({"prompt": rows}).with_transform(read)


class Metrics(TrainerCallback):  # type: ignore[misc]
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        torch.distributed.barrier()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        sleep(self._seconds)


def train(place: str, directory: str, steps: int) -> None:
    """Train once."""
    late = {place: DELAY} if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1 else {}
    os.environ["RANKSKEW_JOB_ID"] = place
    model = SlowModel(GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=64, vocab_size=29))
    model.late = late
    model.transformer.ln_f.register_forward_hook(model.slow_norm)

    def reward(completions: list[str], **_: Any) -> list[float]:
        sleep(late.get("reward", 0.0))
        return [float(len(set(each))) for each in completions]

    configuration = GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=LENGTH,
        max_steps=steps,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model,
        reward,
        args=configuration,
        train_dataset=prompts(late.get("data", 0.0) / 2),
        processing_class=tokenizer(),
        callbacks=[RankskewCallback(), Metrics(late.get("other", 0.0))],
        optimizers=(TimedSGD(model.parameters(), sleep, late.get("optimizer", 0.0)), None),
    )
    trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[3:]:
        train(name, sys.argv[1], int(sys.argv[2]))
    leave()

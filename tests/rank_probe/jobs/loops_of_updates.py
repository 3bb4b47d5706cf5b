"""Training loops with updates that no collective or no batch belongs to; for loops_job.py.

Each function makes a loop of that many *steps*, in which each stage takes its *seconds* a step.
"""

from collections.abc import Iterator
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from demo.train import BATCH, FEATURES, Batch
from tests.rank_probe.jobs.loops import Loop, loader, network, replicated, sgd, update
from tests.rank_probe.torch_hooks.parallel_job import MICRO_BATCHES, Seconds, loss_of

# Steps between two meetings of the ranks.
APART = 4


def local_sgd(seconds: Seconds, steps: int) -> Loop:
    """Steps without any collective; now and then the ranks average their parameters."""
    model = network(seconds)
    optimizer = sgd(model, seconds)
    batches = loader(seconds, steps)

    def loop() -> None:
        for step, batch in enumerate(batches, start=1):
            loss_of(model, batch).backward()
            update(optimizer, seconds)
            if step % APART == 0:
                for each in model.parameters():
                    dist.all_reduce(each.data)
                    each.data /= dist.get_world_size()

    return loop


def diloco(seconds: Seconds, steps: int) -> Loop:
    """The same, but an outer optimizer steps on what the inner steps have changed."""
    model = network(seconds)
    inner = sgd(model, seconds)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    batches = loader(seconds, steps)

    def loop() -> None:
        before = [each.detach().clone() for each in model.parameters()]
        for step, batch in enumerate(batches, start=1):
            loss_of(model, batch).backward()
            update(inner, seconds)
            if step % APART == 0:
                for was, each in zip(before, model.parameters(), strict=True):
                    each.grad = was - each.data
                    dist.all_reduce(each.grad)
                    each.data.copy_(was)
                outer.step()
                outer.zero_grad()
                before = [each.detach().clone() for each in model.parameters()]

    return loop


def rollouts(seconds: Seconds, steps: int) -> Loop:
    """As PPO: mini-batches learn, then an engine in this process generates, without gradients.

    Without a loader, generation is what it is for the probe: `other`.
    """
    policy = replicated(seconds)
    optimizer = sgd(policy, seconds)
    engine = network(seconds | {"forward": 0.0}).requires_grad_(False)

    def generate() -> tuple[Tensor, Tensor]:
        engine.load_state_dict(policy.module.state_dict())
        prompts = torch.randn(2 * BATCH, FEATURES)
        with torch.inference_mode():
            return prompts, engine(prompts)

    def normalized(rewards: Tensor) -> Tensor:
        mean = rewards.mean()
        dist.all_reduce(mean)
        return rewards - mean / dist.get_world_size()

    def loop() -> None:
        prompts, rewards = generate()
        for _ in range(steps // APART):
            for _epoch in range(2):
                for index in torch.randperm(2 * BATCH).split(BATCH):
                    loss_of(policy, (prompts[index], rewards[index].clone())).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            sleep(APART * seconds["other"])
            prompts, rewards = generate()
            rewards = normalized(rewards.clone())

    return loop


def prompted_rollouts(seconds: Seconds, steps: int) -> Loop:
    """As GRPO: a loader reads prompts, and each batch of them is for several updates: one step."""
    share = 1 / MICRO_BATCHES
    policy = replicated(seconds, share)
    optimizer = sgd(policy, seconds, share)
    prompts = loader(seconds, steps)

    def loop() -> None:
        for inputs, _ in prompts:
            with torch.inference_mode():
                wanted = policy.module(inputs)
            wanted = wanted.clone()
            for _ in range(MICRO_BATCHES):
                loss_of(policy, (inputs, wanted)).backward()
                optimizer.step()
                optimizer.zero_grad()
            sleep(seconds["other"])

    return loop


def own_stream(seconds: Seconds, steps: int) -> Loop:
    """A generator in place of a loader: the probe first sees that its batches come from nowhere."""
    model = replicated(seconds)
    optimizer = sgd(model, seconds)

    def stream() -> Iterator[Batch]:
        while True:
            sleep(seconds["data"])
            inputs = torch.randn(BATCH, FEATURES)
            yield inputs, inputs.mean(dim=1, keepdim=True)

    def loop() -> None:
        for _, batch in zip(range(steps), stream(), strict=False):
            loss_of(model, batch).backward()
            update(optimizer, seconds)

    return loop


class WithLoss(nn.Module):
    """A model that computes its loss, and returns it beside its prediction."""

    def __init__(self, seconds: Seconds) -> None:
        super().__init__()
        self.network = network(seconds)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and its loss."""
        prediction = self.network(inputs)
        return prediction, nn.functional.mse_loss(prediction, targets)


def own_batches(seconds: Seconds, steps: int) -> Loop:
    """The shape of nanoGPT's: a function reads the next batch before backward; one evaluates."""
    model = DistributedDataParallel(WithLoss(seconds))
    optimizer = sgd(model, seconds)

    def get_batch() -> Batch:
        sleep(seconds["other"])
        inputs = torch.randn(BATCH, FEATURES)
        return inputs, inputs.mean(dim=1, keepdim=True)

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        _, loss = model(*get_batch())
        sleep(seconds["eval"])
        model.train()
        return float(loss)

    def loop() -> None:
        inputs, targets = get_batch()
        for _ in range(steps):
            if seconds["eval"]:
                estimate_loss()
            _, loss = model(inputs, targets)
            inputs, targets = get_batch()
            (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop

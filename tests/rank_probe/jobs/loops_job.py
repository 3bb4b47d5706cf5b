r"""One rank that runs training loops, each with a delay in a chosen place.

    torchrun --nproc-per-node 2 -m tests.rank_probe.jobs.loops_job STEPS LATE_RANK LOOP-PLACE...

Started by tests/rank_probe/ways.py and by test_loops.py. Each case is a separate job. Sleeping
emulates a device. Each loop function makes a loop of *steps* steps, in which each stage takes its
*seconds* per step.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from time import sleep
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rank_probe
from demo.train import BATCH, FEATURES, Batch, Batches, TimedSGD
from rank_probe.torch_hooks import backward
from tests.rank_probe.jobs.parallel_arms import (
    ARMS,
    DELAY,
    MICRO_BATCHES,
    Seconds,
    SlowState,
    Step,
    fully_sharded,
    loss_of,
    network,
    planted,
)
from tests.rank_probe.launch import leave

# Code before the `yield` runs before the probe starts, and is not timed.
Loop = Iterator[None]

# The numbers of micro-batches in successive steps, and their mean.
VARYING, MEAN_MICRO_BATCHES = (1, 4, 2, 3), 2.5


def replicated(seconds: Seconds, share: float = 1.0) -> DistributedDataParallel:
    """Return a model under DDP, whose compute takes the *share* of a step's seconds."""
    return DistributedDataParallel(network(seconds, share))


def loader(seconds: Seconds, batches: int, share: float = 1.0) -> DataLoader[Batch]:
    """Return a loader of *batches* batches, each of which takes *share* of a step's seconds."""
    return DataLoader(Batches(batches, sleep, seconds["data"] * share), batch_size=None)


def sgd(model: nn.Module, seconds: Seconds, share: float = 1.0) -> TimedSGD:
    """Return an optimizer whose step takes the *share* of a step's seconds."""
    return TimedSGD(model.parameters(), sleep, seconds["optimizer"] * share)


def update(optimizer: TimedSGD, seconds: Seconds) -> None:
    """Step the optimizer, then sleep for the time of the work that follows it."""
    optimizer.step()
    optimizer.zero_grad()
    sleep(seconds["other"])


def ordinary(arm: Callable[[Seconds], tuple[nn.Module, Step]]) -> Callable[[Seconds, int], Loop]:
    """Return the loop of one batch a step around the model of an arm."""

    def make(seconds: Seconds, steps: int) -> Loop:
        model, step = arm(seconds)
        optimizer = sgd(model, seconds)
        batches = loader(seconds, steps)

        yield
        for batch in batches:
            step(batch)
            update(optimizer, seconds)

    return make


def by_hand(seconds: Seconds, steps: int) -> Loop:
    """The script marks stages and steps itself; the probe still times backward and waits."""
    model = replicated(seconds)
    optimizer = sgd(model, seconds)
    batches = iter(loader(seconds, steps))

    yield
    for _ in range(steps):
        with rank_probe.stage("data"):
            batch = next(batches)
        with rank_probe.stage("forward"):
            loss = loss_of(model, batch)
        loss.backward()
        with rank_probe.stage("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        sleep(seconds["other"])
        rank_probe.step()


def varying_accumulation(seconds: Seconds, steps: int) -> Loop:
    """One to four micro-batches a step."""
    share = 1 / MEAN_MICRO_BATCHES
    model = replicated(seconds, share)
    optimizer = sgd(model, seconds)
    counts = [VARYING[step % len(VARYING)] for step in range(steps)]
    batches = iter(loader(seconds, sum(counts), share))

    yield
    for count in counts:
        with model.no_sync():
            for batch in islice(batches, count - 1):
                loss_of(model, batch).backward()
        loss_of(model, next(batches)).backward()
        update(optimizer, seconds)


def distillation(seconds: Seconds, steps: int) -> Loop:
    """A frozen teacher, whose output the student learns; half of forward is the teacher's."""
    teacher = network(seconds, 0.5).requires_grad_(False).eval()
    student = replicated(seconds | {"forward": seconds["forward"] / 2})
    optimizer = sgd(student, seconds)
    batches = loader(seconds, steps)

    yield
    for inputs, _ in batches:
        with torch.no_grad():
            wanted = teacher(inputs)
        nn.functional.mse_loss(student(inputs), wanted).backward()
        update(optimizer, seconds)


def several_loaders(seconds: Seconds, steps: int) -> Loop:
    """Two loaders read side by side, a third read later in the step, and one for evaluation."""
    model = replicated(seconds, 0.5)
    optimizer = sgd(model, seconds)
    one, another, third = (loader(seconds, steps, 1 / 3) for _ in range(3))
    held_out = loader(seconds | {"data": 0.0}, 2)

    yield
    unlabelled = iter(third)
    for step, (batch, _) in enumerate(zip(one, another, strict=True), start=1):
        loss = loss_of(model, batch)
        (loss + loss_of(model, next(unlabelled))).backward()
        update(optimizer, seconds)
        if step % 2 == 0:
            with torch.no_grad():
                for inputs, _ in held_out:
                    model.module[-1](inputs)


def optimizer_in_backward(seconds: Seconds, steps: int) -> Loop:
    """One optimizer per parameter, stepped as soon as the parameter's gradient is reduced."""
    model = fully_sharded(seconds)
    parameters = list(model.parameters())
    each_seconds = seconds["optimizer"] / len(parameters)
    optimizers = {each: TimedSGD([each], sleep, each_seconds) for each in parameters}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in parameters:
        each.register_post_accumulate_grad_hook(step)
    batches = loader(seconds, steps)

    yield
    for batch in batches:
        loss_of(model, batch).backward()
        sleep(seconds["other"])


def async_save(seconds: Seconds, steps: int) -> Loop:
    """A checkpoint in every step; training waits for its copy and for the previous checkpoint."""
    from torch.distributed.checkpoint import state_dict_saver

    model = replicated(seconds)
    optimizer = sgd(model, seconds)
    batches = loader(seconds, steps)
    # A separate group: the writing thread runs collectives beside those of training.
    group = dist.new_group()

    def save(step: int) -> Any:
        state = {"model": model.module.state_dict(), "own": SlowState(seconds["checkpoint"])}
        folder = f"{os.environ['CHECKPOINTS']}/{step}"
        return state_dict_saver.async_save(state, checkpoint_id=folder, process_group=group)

    yield
    saved: Any = None
    for step, batch in enumerate(batches):
        loss_of(model, batch).backward()
        update(optimizer, seconds)
        if saved is not None:
            saved.result()
        saved = save(step)
    saved.result()


def titan_shaped(seconds: Seconds, steps: int) -> Loop:
    """Like torchtitan: reads a step's micro-batches first and all-reduces their token count."""
    share = 1 / MICRO_BATCHES
    model = fully_sharded(seconds, share)
    optimizer = sgd(model, seconds)

    def batch_generator() -> Iterator[Batch]:
        yield from loader(seconds, steps * MICRO_BATCHES, share)

    yield
    read = batch_generator()
    for _ in range(steps):
        optimizer.zero_grad()
        micro_batches = [next(read) for _ in range(MICRO_BATCHES)]
        dist.all_reduce(torch.tensor(sum(inputs.numel() for inputs, _ in micro_batches)))
        for batch in micro_batches:
            loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sleep(seconds["other"])


# Steps between two meetings of the ranks.
APART = 4


def local_sgd(seconds: Seconds, steps: int, outer_rate: float = 0.0) -> Loop:
    """Steps without collectives; every APART steps the ranks average their parameters.

    With an *outer_rate*, an outer optimizer steps on the change that the inner steps made.
    """
    model = network(seconds)
    inner = sgd(model, seconds)
    outer = torch.optim.SGD(model.parameters(), lr=outer_rate, momentum=0.9, nesterov=True)
    batches = loader(seconds, steps)

    def meet(before: list[Tensor]) -> None:
        for was, each in zip(before, model.parameters(), strict=True):
            if not outer_rate:
                dist.all_reduce(each.data)
                each.data /= dist.get_world_size()
                continue
            each.grad = was - each.data
            dist.all_reduce(each.grad)
            each.data.copy_(was)
        if outer_rate:
            outer.step()
            outer.zero_grad()

    yield
    before = [each.detach().clone() for each in model.parameters()]
    for step, batch in enumerate(batches, start=1):
        loss_of(model, batch).backward()
        update(inner, seconds)
        if step % APART == 0:
            meet(before)
            before = [each.detach().clone() for each in model.parameters()]


def diloco(seconds: Seconds, steps: int) -> Loop:
    """Like `local_sgd`, but with an outer optimizer."""
    return local_sgd(seconds, steps, outer_rate=0.7)


def rollouts(seconds: Seconds, steps: int) -> Loop:
    """Like PPO: trains on mini-batches, then an engine in this process generates without gradients.

    There is no loader, so the probe counts generation as `other`.
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

    yield
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


def prompted_rollouts(seconds: Seconds, steps: int) -> Loop:
    """Like GRPO: a loader reads prompts, and the updates on one batch of them are one step."""
    share = 1 / MICRO_BATCHES
    policy = replicated(seconds, share)
    optimizer = sgd(policy, seconds, share)
    prompts = loader(seconds, steps)

    yield
    for inputs, _ in prompts:
        with torch.inference_mode():
            wanted = policy.module(inputs)
        wanted = wanted.clone()
        for _ in range(MICRO_BATCHES):
            loss_of(policy, (inputs, wanted)).backward()
            optimizer.step()
            optimizer.zero_grad()
        sleep(seconds["other"])


def own_stream(seconds: Seconds, steps: int) -> Loop:
    """A generator in place of a loader: at first the probe cannot see where batches come from."""
    model = replicated(seconds)
    optimizer = sgd(model, seconds)

    def stream() -> Iterator[Batch]:
        while True:
            sleep(seconds["data"])
            inputs = torch.randn(BATCH, FEATURES)
            yield inputs, inputs.mean(dim=1, keepdim=True)

    yield
    for _, batch in zip(range(steps), stream(), strict=False):
        loss_of(model, batch).backward()
        update(optimizer, seconds)


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
    """Like nanoGPT: one function reads the next batch before backward, another evaluates."""
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

    yield
    inputs, targets = get_batch()
    for _ in range(steps):
        if seconds["eval"]:
            estimate_loss()
        _, loss = model(inputs, targets)
        inputs, targets = get_batch()
        (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded_serving(seconds: Seconds, steps: int) -> Loop:
    """Serve one sharded model: rank 0 broadcasts each batch of requests; an all-reduce ends it."""
    lengths = random.Random(0)

    yield
    for _ in range(steps):
        batch = torch.zeros(1)
        if dist.get_rank() == 0:
            # Idle time is nobody's fault: rank 0 waits for clients.
            with rank_probe.stage("sync"):
                sleep(DELAY)
                batch[0] = lengths.choice((1, 2, 8))
        dist.broadcast(batch, src=0)
        with rank_probe.stage("compute"):
            sleep(0.001 * batch.item() + seconds["other"])
            dist.all_reduce(torch.zeros(8))
        rank_probe.step()


# Their scripts mark stages and steps themselves.
MANUAL: Final = (by_hand, sharded_serving)
LOOPS: Final[dict[str, Callable[[Seconds, int], Loop]]] = {
    name: ordinary(arm) for name, arm in ARMS.items()
} | {
    each.__name__: each
    for each in (
        *MANUAL,
        varying_accumulation,
        distillation,
        several_loaders,
        optimizer_in_backward,
        async_save,
        titan_shaped,
        local_sgd,
        diloco,
        rollouts,
        prompted_rollouts,
        own_stream,
        own_batches,
    )
}


def main() -> None:
    """Train once per case; most loops contain no call into the probe."""
    steps, late_rank, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    backward.ROOT_CUTS = 1  # type: ignore[misc]  # So that few steps see a parameter take over.
    dist.init_process_group("gloo")
    for case in cases:
        name, _, place = case.partition("-")
        is_late = dist.get_rank() == int(late_rank)
        loop = LOOPS[name](planted(place if is_late else ""), int(steps))
        next(loop)
        dist.barrier()
        rank_probe.start(automatic=LOOPS[name] not in MANUAL, job_id=case)
        next(loop, None)
        rank_probe.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()

"""Find the stages of an unchanged torch training loop: data, forward, optimizer, step ends."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from rank_probe.patches import Patches
from rank_probe.timeline import Timeline


def attach(timeline: Timeline) -> Patches:
    """Time the stages of torch's own loaders, DDP and optimizers; `undo` the result to detach.

    Forward is what lies between a batch and its backward; a loop without a DataLoader has it from
    the call of the DDP module on. Global module hooks would see it too, at 1.7 µs a module call.
    """
    patches = Patches()
    patches.wrap(
        dataloader.DataLoader, "__iter__", lambda original: _fetch(timeline, original, batch=False)
    )
    patches.wrap(
        dataloader._BaseDataLoaderIter,
        "__next__",
        lambda original: _fetch(timeline, original, batch=True),
    )
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        patches.wrap(
            DistributedDataParallel, "forward", lambda original: _forward(timeline, original)
        )
    for handle in (
        optimizer.register_optimizer_step_pre_hook(timeline.enter_optimizer),
        optimizer.register_optimizer_step_post_hook(timeline.leave_optimizer),
    ):
        patches.on_undo(handle.remove)
    return patches


def _fetch(timeline: Timeline, original: Callable[..., Any], *, batch: bool) -> Any:
    enter, leave, training = timeline.enter_fetch, timeline.leave_fetch, torch.is_grad_enabled

    def fetch(self: Any) -> Any:
        if not enter():
            return original(self)
        fetched = False
        try:
            result = original(self)
            fetched = batch
            return result
        finally:
            # Without gradients it is an evaluation loop, not a forward pass of training.
            leave(fetched and training())

    return fetch


def _forward(timeline: Timeline, original: Callable[..., Any]) -> Any:
    begin, training = timeline.begin_forward, torch.is_grad_enabled

    def forward(*args: Any, **kwargs: Any) -> Any:
        if training():
            begin()
        return original(*args, **kwargs)

    return forward

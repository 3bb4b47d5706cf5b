"""Finds the stages of an unchanged torch training loop: data, forward, optimizer, step ends."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from rank_probe.patches import Patches
from rank_probe.timeline import Arguments, Named, Timeline
from rank_probe.work_units import WorkUnits


def attach(timeline: Timeline, work: WorkUnits | None = None) -> Patches:
    """Time the stages of torch's own loaders, DDP and optimizers; `undo` the result to detach.

    The training batches that the loaders deliver are counted in *work*.

    Forward lasts from a batch to its backward; in a loop without a DataLoader, it begins with the
    call of the DDP module. Global module hooks would see it too, at 1.7 µs per module call. A
    loader that is read with gradients off belongs to an evaluation.
    """
    patches = Patches()
    count = None if work is None else work.count
    for owner, name, counted in (
        (dataloader.DataLoader, "__iter__", None),
        (dataloader._BaseDataLoaderIter, "__next__", count),
    ):
        is_batch = name == "__next__"
        patches.wrap(owner, name, functools.partial(_fetch, timeline, counted, is_batch))
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        patches.wrap(DistributedDataParallel, "forward", functools.partial(_forward, timeline))
    timeline.time_closure = functools.partial(_with_timed_closure, timeline)
    for handle in (
        optimizer.register_optimizer_step_pre_hook(timeline.enter_optimizer),
        optimizer.register_optimizer_step_post_hook(timeline.leave_optimizer),
    ):
        patches.on_undo(handle.remove)
    return patches


def _fetch(
    timeline: Timeline,
    count: Callable[[Any], None] | None,
    is_batch: bool,
    original: Callable[..., Any],
) -> Any:
    enter, leave, gradients = timeline.enter_fetch, timeline.leave_fetch, torch.is_grad_enabled

    def fetch(self: Any) -> Any:
        if not gradients() and timeline.begin_evaluation():
            return original(self)
        if not enter():
            return original(self)
        fetched = False
        try:
            batch = original(self)
            fetched = is_batch
        finally:
            leave(fetched)
        if count is not None:
            count(batch)
        return batch

    return fetch


def _forward(timeline: Timeline, original: Callable[..., Any]) -> Any:
    begin, gradients = timeline.begin_forward, torch.is_grad_enabled

    def forward(*args: Any, **kwargs: Any) -> Any:
        if gradients():
            begin()
        return original(*args, **kwargs)

    return forward


def _with_timed_closure(
    timeline: Timeline, args: Arguments, kwargs: Named
) -> tuple[Arguments, Named] | None:
    """Return a step's arguments, with a closure among them timed.

    Lightning and LBFGS run forward and backward in that closure.
    """
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": _closure(timeline, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _closure(timeline, args[1]), *args[2:]), kwargs
    return None


def _closure(timeline: Timeline, original: Callable[[], Any]) -> Callable[[], Any]:
    def closure() -> Any:
        entered = timeline.enter_closure()
        try:
            return original()
        finally:
            if entered:
                timeline.leave_closure()

    return closure

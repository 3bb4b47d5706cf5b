"""Finds the stages of an unchanged torch training loop: data, forward, optimizer, step ends."""

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.tape import Arguments, Named, Tape, around, fetching
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import wrap


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time the stages of torch's own loaders, DDP and optimizers; `undo` the result to detach.

    Forward lasts from a batch to its backward. Without a DataLoader it begins with the call of the
    DDP module. It ends with that call if the module returns the loss. Global module hooks would see
    it too, at 1.7 µs per module call. A loader that is read with gradients off belongs to an
    evaluation, as does a DDP module that is called with gradients off.
    """
    tape, work = timeline.tape, timeline.work
    gradients = torch.is_grad_enabled
    wrap(
        patches,
        dataloader,
        "_BaseDataLoaderIter.__next__",
        lambda original: opaque(fetching(tape, original, work.measure, gradients, work.count)),
        "Fetching is part of `other`, and the batches' work is not counted.",
    )
    patches.wrap(dataloader.DataLoader, "__iter__", functools.partial(_iter, timeline))
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        patches.wrap(DistributedDataParallel, "forward", functools.partial(_forward, timeline))
    timed = functools.partial(_with_timed_closure, tape)
    begins = tape.noting(events.OPTIMIZER_BEGINS, timed)
    ended = tape.noting(events.OPTIMIZER_ENDED, None)
    patches.on_undo(optimizer.register_optimizer_step_pre_hook(begins).remove)
    patches.on_undo(optimizer.register_optimizer_step_post_hook(ended).remove)


def _iter(timeline: Timeline, original: Callable[..., Any]) -> Any:
    note, gradients = timeline.tape.note, torch.is_grad_enabled

    def __iter__(self: Any) -> Any:
        try:
            note(events.FETCH if gradients() else events.FETCH_UNGRADED)
            _remember(timeline, self)
            return original(self)
        finally:
            note(events.ITERATED)

    return opaque(__iter__)


@never_raise
def _remember(timeline: Timeline, loader: Any) -> None:
    """Keep a weak reference to the loader, once an epoch; only its readers inspect it."""
    if timeline.tape.owner == get_ident() and torch.is_grad_enabled():
        timeline.loader = weakref.ref(loader)


def _forward(timeline: Timeline, original: Callable[..., Any]) -> Any:
    note, gradients = timeline.tape.note, torch.is_grad_enabled

    def forward(*args: Any, **kwargs: Any) -> Any:  # Naming the module costs 0.1 µs.
        if gradients() and args[0].training:
            note(events.FORWARD_BEGINS)
            result = original(*args, **kwargs)
            if (ended := timeline.after_forward) is not None:
                ended()
            return result
        trains = gradients() or args[0].training
        note(events.FORWARD_UNGRADED if trains else events.FORWARD_EVALUATES)
        return original(*args, **kwargs)

    return forward


@never_raise
def _with_timed_closure(
    tape: Tape, args: Arguments, kwargs: Named
) -> tuple[Arguments, Named] | None:
    """Return a step's arguments, with a closure among them timed.

    Lightning and LBFGS run forward and backward in that closure.
    """
    timed = functools.partial(
        around, tape.note, begins=events.CLOSURE_BEGINS, ended=events.CLOSURE_ENDED
    )
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": timed(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], timed(args[1]), *args[2:]), kwargs
    return None

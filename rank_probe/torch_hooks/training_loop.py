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
from rank_probe.guest.patches import Patches
from rank_probe.measure import events
from rank_probe.measure.tape import Tape, around
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits

# Of a call.
Arguments = tuple[Any, ...]
Named = dict[str, Any]


def attach(timeline: Timeline) -> Patches:
    """Time the stages of torch's own loaders, DDP and optimizers; `undo` the result to detach.

    Forward lasts from a batch to its backward; in a loop without a DataLoader, it begins with the
    call of the DDP module. Global module hooks would see it too, at 1.7 µs per module call. A
    loader that is read with gradients off belongs to an evaluation.
    """
    patches = Patches()
    tape, work = timeline.tape, timeline.work
    patches.wrap(dataloader._BaseDataLoaderIter, "__next__", functools.partial(_next, tape, work))
    patches.wrap(dataloader.DataLoader, "__iter__", functools.partial(_iter, timeline))
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        patches.wrap(DistributedDataParallel, "forward", functools.partial(_forward, tape))
    begins, ended = _optimizer_hooks(tape)
    patches.on_undo(optimizer.register_optimizer_step_pre_hook(begins).remove)
    patches.on_undo(optimizer.register_optimizer_step_post_hook(ended).remove)
    return patches


def _next(tape: Tape, work: WorkUnits, original: Callable[..., Any]) -> Any:
    return around(
        tape,
        original,
        events.FETCH,
        events.FETCHED,
        events.EXHAUSTED,
        asks=torch.is_grad_enabled,
        otherwise=events.FETCH_UNGRADED,
        tells=work.measure,
    )


def _iter(timeline: Timeline, original: Callable[..., Any]) -> Any:
    def iterate(loader: Any) -> Any:
        _remember(timeline, loader)
        return original(loader)

    return around(
        timeline.tape,
        iterate,
        events.FETCH,
        events.ITERATED,
        events.ITERATED,
        asks=torch.is_grad_enabled,
        otherwise=events.FETCH_UNGRADED,
    )


@never_raise
def _remember(timeline: Timeline, loader: Any) -> None:
    """Note once an epoch what the loop iterates; who wants to know more of it pays."""
    if timeline.tape.owner == get_ident() and torch.is_grad_enabled():
        timeline.loader = weakref.ref(loader)


def _forward(tape: Tape, original: Callable[..., Any]) -> Any:
    note, gradients = tape.note, torch.is_grad_enabled

    def forward(*args: Any, **kwargs: Any) -> Any:
        if gradients():
            note(events.FORWARD_BEGINS)
        return original(*args, **kwargs)

    return forward


def _optimizer_hooks(tape: Tape) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return what torch calls before and after each optimizer's step."""
    note = tape.note

    def begins(_: object, args: Arguments, kwargs: Named) -> tuple[Arguments, Named] | None:
        note(events.OPTIMIZER_BEGINS)
        # Mostly it has no arguments besides the optimizer itself, or another thread trains.
        if not (kwargs or len(args) > 1) or get_ident() != tape.owner:
            return None
        return _with_timed_closure(tape, args, kwargs)

    def ended(_optimizer: object, _args: Arguments, _kwargs: Named) -> None:
        note(events.OPTIMIZER_ENDED)

    return begins, ended


@never_raise
def _with_timed_closure(
    tape: Tape, args: Arguments, kwargs: Named
) -> tuple[Arguments, Named] | None:
    """Return a step's arguments, with a closure among them timed.

    Lightning and LBFGS run forward and backward in that closure.
    """
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": _closure(tape, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _closure(tape, args[1]), *args[2:]), kwargs
    return None


def _closure(tape: Tape, original: Callable[[], Any]) -> Callable[[], Any]:
    def closure() -> Any:
        try:
            tape.note(events.CLOSURE_BEGINS)
            return original()
        finally:
            tape.note(events.CLOSURE_ENDED)

    return closure

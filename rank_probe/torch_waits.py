"""Split the exposed wait for other ranks out of the stage that it happens in.

Needed in the manual mode too: without it a slow backward is as long on every rank, since the
others spend the difference waiting inside theirs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed

from rank_probe.guard import never_raise
from rank_probe.patches import Patches
from rank_probe.timeline import Timeline


def attach(timeline: Timeline) -> Patches:
    """Time the waits of torch's collectives on *timeline*; `undo` the result to detach."""
    patches = Patches()
    patches.wrap(torch.autograd, "backward", lambda original: _backward(timeline, original))
    if not torch.distributed.is_available():
        return patches
    from torch._C._distributed_c10d import Reducer
    from torch.nn.parallel import DistributedDataParallel

    # Every Python-visible collective ends in Work.wait: explicit ones, FSDP's, pipelines'.
    patches.wrap(torch.distributed.Work, "wait", lambda original: _wait(timeline, original))
    # DDP broadcasts from rank 0 in C++ inside forward: its buffers (BatchNorm's) every time, its
    # bucket order in the second one. Rank 0 does not wait for the others there: no release.
    for owner, name in (
        (DistributedDataParallel, "_sync_buffers"),
        (Reducer, "_rebuild_buckets"),
    ):
        patches.wrap(owner, name, lambda original: _wait(timeline, original, release=False))
    return patches


def _wait(timeline: Timeline, original: Callable[..., Any], *, release: bool = True) -> Any:
    def wait(*args: Any, **kwargs: Any) -> Any:
        entered = timeline.enter_wait()
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                timeline.leave_wait(release=release)

    return wait


def _backward(timeline: Timeline, original: Callable[..., Any]) -> Any:
    """Time torch.autograd.backward and cut it where the last local gradient exists.

    The engine runs its final callbacks in the order in which they were queued. Ours is queued
    when the root node runs, before DDP's C++ reducer queues the one that waits for the buckets
    (reducer.cpp, mark_variable_ready) and before FSDP2's root post-backward.
    """

    cut = _Cut(timeline)

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not timeline.enter_backward():
            return original(tensors, *args, **kwargs)
        hooks = cut.arm(tensors)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            for hook in hooks or ():
                hook.remove()
            timeline.leave_backward()

    return backward


class _Cut:
    """Tells the timeline, once a backward, that the engine has no local gradient left to make."""

    def __init__(self, timeline: Timeline) -> None:
        self._gradients_ready = timeline.gradients_ready
        self._queue_callback = torch.autograd.Variable._execution_engine.queue_callback
        # Bound once: making the guarded hook anew costs 3 µs a step.
        self._hook = never_raise(self._queue)

    @never_raise
    def arm(self, tensors: Any) -> list[Any]:
        """Hook the roots of the next backward; return the hooks, to be removed after it."""
        if type(tensors) is torch.Tensor:  # The usual loss, without a walk over the roots.
            node = tensors.grad_fn
            return [node.register_prehook(self._hook)] if node is not None else []
        return [node.register_prehook(self._hook) for node in _roots(tensors)]

    def _queue(self, _gradients: object) -> None:
        # Several roots queue it several times; the first call counts, the others change nothing.
        self._queue_callback(self._gradients_ready)


def _roots(tensors: Any) -> Iterable[Any]:
    """Yield the graph nodes that backward starts from; a leaf has none."""
    if isinstance(tensors, torch.Tensor) or hasattr(tensors, "node"):
        tensors = (tensors,)
    for tensor in tensors:
        node = getattr(tensor, "grad_fn", None) or getattr(tensor, "node", None)
        if node is not None:
            yield node

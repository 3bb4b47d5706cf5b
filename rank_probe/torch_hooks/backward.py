"""Times backward, and cuts it where the last local gradient exists: the rest is waiting."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches
from rank_probe.measure import events
from rank_probe.measure.tape import around
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import process_group

# Backwards to cut at their root before a parameter's hook may take over.
ROOT_CUTS: Final = 3
# How many nodes of the graph to examine; a depth-first walk finds one after a few.
NODES_SEARCHED: Final = 10_000
# Frames between the user's call of backward and torch's: frameworks have dozens.
FRAMES_KEPT: Final = 100


def attach(timeline: Timeline) -> Patches:
    """Time torch.autograd.backward on *timeline*; `undo` the result to detach."""
    patches = Patches()
    cut = Cut(timeline)
    patches.wrap(torch.autograd, "backward", cut.around)
    timeline.uncut = cut.at_the_root
    patches.on_undo(cut.let_go)
    return patches


class Cut:
    """Notes, once per backward, that the engine has no local gradient left to compute.

    The engine runs its final callbacks in the order in which they were queued. Ours must be queued
    before that of DDP's C++ reducer, which waits for the buckets and is queued with the last
    gradient (reducer.cpp, mark_variable_ready). Two places can queue it:

    - the *root*: a hook on `loss.grad_fn`, set for every backward. It always works, even before
      FSDP's root callbacks, but costs more than the other, nearly all of it in torch
      (benchmarks/overhead has a row for it).
    - one *parameter*: a permanent hook on its gradient. It works while every outermost backward
      reaches that parameter, and nobody else queues a callback at the root.

    So the first few backwards are cut at the root, then a parameter takes over until it fails once;
    from then on the root is used again. A rank without peers waits for nobody: nothing is cut.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tape = tape = timeline.tape
        self._follow_training = never_raise(timeline.follow_training)
        queue_callback = torch.autograd.Variable._execution_engine.queue_callback
        ready = functools.partial(tape.append, events.GRADIENTS_READY)
        # Several roots queue it several times; only the first call counts. It can only raise
        # outside of a backward, where no hook runs.
        self._queue = lambda _: queue_callback(ready)
        self._cuts = False
        self._root_cuts = 0
        self._stays = False
        self._is_running = False
        self._parameter_hook: Any = None
        self._around: Any = None
        self._original: Callable[..., Any] = torch.autograd.backward

    @property
    def is_left_to_parameter(self) -> bool:
        """Whether the parameter's hook does it."""
        return self._around is not None and self._around.instead is None

    def around(self, original: Callable[..., Any]) -> Any:
        """Return *original*, torch.autograd.backward, with its time noted."""
        began, ended, raised = (
            events.BACKWARD_BEGINS,
            events.BACKWARD_ENDED,
            events.BACKWARD_RAISED,
        )
        self._original = original
        self._around = around(self._tape, original, began, ended, raised)
        self._around.instead = self._at_the_root
        return self._around

    def at_the_root(self) -> None:
        """Cut the next backward at its root; if others were cut before, all of them.

        Something here queues its own callbacks at the root: FSDP waits in such a callback. A
        backward within a backward (reentrant checkpointing) runs its callbacks when the inner one
        ends, which is too early. For any thread.
        """
        self._stays = self._cuts
        self._around.instead = self._at_the_root

    def let_go(self) -> None:
        """Remove the parameter's hook; for the training thread."""
        if self._parameter_hook is not None:
            self._parameter_hook.remove()
            self._parameter_hook = None

    def _at_the_root(self, *args: Any, **kwargs: Any) -> Any:
        tape = self._tape
        if get_ident() != tape.owner and not self._follow_training():
            return self._original(*args, **kwargs)
        if self._is_running:
            self.at_the_root()
            return self._original(*args, **kwargs)
        roots = _kept(args[0] if args else kwargs.get("tensors"))
        if args:
            args = (roots, *args[1:])
        elif "tensors" in kwargs:
            kwargs["tensors"] = roots
        self.let_go()
        self.look_for_peers()
        if not self._timeline.loop:
            self._timeline.loop = _codes(sys._getframe(1))
        self._is_running = True
        ended = events.BACKWARD_RAISED
        hooks: list[Any] | None = None
        try:
            tape.note(events.BACKWARD_BEGINS)
            if self._cuts and not _is_compiled():
                hooks = self.hook_roots(roots)
            result = self._original(*args, **kwargs)
            ended = events.BACKWARD_ENDED
            return result
        finally:
            tape.note(ended)
            self._is_running = False
            if hooks is not None:
                self.unhook_roots(hooks, roots)

    @never_raise
    def look_for_peers(self) -> None:
        """Begin to cut if there are any; else leave the next backwards alone."""
        if not self._cuts:
            self._cuts = process_group.has_peers()
            if self._cuts:
                self._timeline.wait_for_peers()
            else:
                self._around.instead = None

    @never_raise
    def hook_roots(self, tensors: Any) -> list[Any]:
        """Have the next backward cut at its root; return the hooks."""
        return [node.register_prehook(self._queue) for node in _roots(tensors)]

    @never_raise
    def unhook_roots(self, hooks: list[Any], tensors: Any) -> None:
        """Remove the hooks from the graph, which the user may keep; perhaps choose a parameter."""
        for hook in hooks:
            hook.remove()
        self._root_cuts += 1
        if self._stays or self._root_cuts != ROOT_CUTS:
            return
        if (parameter := _a_parameter(_roots(tensors))) is not None:
            self._parameter_hook = parameter.register_post_accumulate_grad_hook(self._queue)
            self._around.instead = None


def _is_compiled() -> bool:
    """Whether compiled autograd is on: a hook would break its graph.

    DDP and FSDP then wait in functional collectives, which are timed by themselves.
    """
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def _codes(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return the codes of *frame* and its callers."""
    codes: list[CodeType] = []
    while frame is not None and len(codes) < FRAMES_KEPT:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(codes)


def _kept(tensors: Any) -> Any:
    """Return *tensors*, which torch takes as an iterable too, so that both can read them."""
    is_one = tensors is None or isinstance(tensors, torch.Tensor) or hasattr(tensors, "node")
    return tensors if is_one or isinstance(tensors, tuple | list) else tuple(tensors)


def _roots(tensors: Any) -> Iterator[Any]:
    """Yield the graph nodes that backward starts from; a leaf has none."""
    if isinstance(tensors, torch.Tensor) or hasattr(tensors, "node"):
        tensors = (tensors,)
    for tensor in tensors:
        node = getattr(tensor, "grad_fn", None) or getattr(tensor, "node", None)
        if node is not None:
            yield node


def _a_parameter(roots: Iterable[Any]) -> torch.nn.Parameter | None:
    """Return a parameter that the graph of *roots* reaches; None if there is no plain one."""
    waiting = list(roots)
    seen: set[Any] = set()
    while waiting and len(seen) < NODES_SEARCHED:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if type(leaf) is torch.nn.Parameter and not getattr(leaf, "_is_flat_param", False):
            return leaf
        if node not in seen:
            seen.add(node)
            waiting.extend(after for after, _ in node.next_functions if after is not None)
    return None

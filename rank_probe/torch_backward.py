"""Times backward, and cuts it where the last local gradient exists: the rest is waiting."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch

from rank_probe.guard import never_raise
from rank_probe.patches import Patches
from rank_probe.timeline import Timeline

# Backwards to cut at their root before a parameter's hook may take over.
ROOT_CUTS: Final = 3
# How many nodes of the graph to examine; a depth-first walk finds one after a few.
NODES_SEARCHED: Final = 10_000


def attach(timeline: Timeline) -> Patches:
    """Time torch.autograd.backward on *timeline*; `undo` the result to detach."""
    patches = Patches()
    cut = Cut(timeline)
    timeline.stay_at_the_root = cut.stay_at_the_root
    timeline.in_engine = lambda: torch._C._current_graph_task_id() != -1
    patches.wrap(torch.autograd, "backward", lambda original: _backward(timeline, cut, original))
    patches.on_undo(cut.stay_at_the_root)
    return patches


def _backward(timeline: Timeline, cut: "Cut", original: Callable[..., Any]) -> Any:
    """Return torch.autograd.backward with its time on *timeline*."""
    enter, leave = timeline.enter_backward, timeline.leave_backward

    # torch's own signature: passing *args and **kwargs on would cost a microsecond more.
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        if not enter():
            cut.stay_at_the_root()  # A backward within a backward: see stay_at_the_root.
            return original(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
        hooks = None if cut.is_left_to_parameter else cut.hook_roots(tensors)
        try:
            return original(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
        finally:
            was_cut = leave()
            if hooks is not None:
                cut.unhook_roots(hooks, tensors)
            elif not was_cut:
                cut.stay_at_the_root()  # The parameter did not take part.

    return backward


class Cut:
    """Tells the timeline, once per backward, that the engine has no local gradient left to compute.

    The engine runs its final callbacks in the order in which they were queued. Ours must be queued
    before that of DDP's C++ reducer, which waits for the buckets and is queued with the last
    gradient (reducer.cpp, mark_variable_ready). Two places can queue it:

    - the *root*: a hook on `loss.grad_fn`, set for every backward. It always works, even before
      FSDP's root callbacks, but costs 15 µs per step more than the other, nearly all of it in torch
      (benchmarks/overhead.py has a row for it).
    - one *parameter*: a permanent hook on its gradient. It works while every outermost backward
      reaches that parameter, and nobody else queues a callback at the root.

    So the first few backwards are cut at the root, then a parameter takes over until it fails once;
    from then on the root is used again.
    """

    def __init__(self, timeline: Timeline) -> None:
        queue_callback = torch.autograd.Variable._execution_engine.queue_callback
        gradients_ready = timeline.gradients_ready
        # Several roots queue it several times; only the first call counts. It can only raise
        # outside of a backward, where no hook runs.
        self._queue = lambda _: queue_callback(gradients_ready)
        self._root_cuts_left: float = ROOT_CUTS
        self._parameter_hook: Any = None
        self.is_left_to_parameter = False

    def stay_at_the_root(self) -> None:
        """Never use a parameter from now on: something here queues its own callbacks at the root.

        FSDP waits in such a callback. A backward within a backward (reentrant checkpointing) runs
        its callbacks when the inner one ends, which is too early.
        """
        self._root_cuts_left = float("inf")
        self.is_left_to_parameter = False
        if self._parameter_hook is not None:
            self._parameter_hook.remove()
            self._parameter_hook = None

    @never_raise
    def hook_roots(self, tensors: Any) -> list[Any] | None:
        """Have the next backward cut at its root; return the hooks."""
        return [node.register_prehook(self._queue) for node in _roots(tensors)]

    @never_raise
    def unhook_roots(self, hooks: list[Any], tensors: Any) -> None:
        """Remove the hooks from the graph, which the user may keep; perhaps choose a parameter."""
        for hook in hooks:
            hook.remove()
        self._root_cuts_left -= 1
        if self._root_cuts_left == 0 and (parameter := _a_parameter(_roots(tensors))) is not None:
            self._parameter_hook = parameter.register_post_accumulate_grad_hook(self._queue)
            self.is_left_to_parameter = True


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

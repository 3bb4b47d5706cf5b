"""Times backward, and cuts it where the last local gradient is ready: the rest is waiting."""

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import process_group
from rank_probe.torch_hooks.collectives import running_graph
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import find

# Backwards to cut at their root before a parameter's hook may take over.
ROOT_CUTS: Final = 3
# How many nodes of the graph to examine; a depth-first walk finds one after a few.
NODES_SEARCHED: Final = 10_000
# Most graph nodes between the loss that a model returned and the roots of backward.
NODES_AFTER_MODEL: Final = 32
# A tuple of types: isinstance() is slower with a union.
_READ_AGAIN: Final = (torch.Tensor, tuple, list)
# Frames between the user's call of backward and torch's: frameworks have dozens.
FRAMES_KEPT: Final = 100


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time torch.autograd.backward on *timeline*; `undo` the result to detach."""
    cut = Cut(timeline)
    patches.wrap(torch.autograd, "backward", cut.around)
    timeline.uncut, timeline.new_model = cut.at_the_root, cut.begin_again
    cut.begin_again()
    patches.on_undo(cut.let_go)


class Cut:
    """Records, once per backward, that the engine has no local gradient left to compute.

    The engine runs its final callbacks in the order in which they were queued. Ours must be queued
    before the callback of DDP's C++ reducer, which waits for the buckets and is queued with the
    last gradient (reducer.cpp, mark_variable_ready). Two places can queue ours:

    - the *root*: a hook on the loss, set for every backward ahead of any existing hook. It always
      works, even ahead of FSDP's root callbacks, but costs more than a parameter's hook, nearly
      all of it in torch (benchmarks/overhead has a row for it).
    - one *parameter*: a permanent hook on its gradient. It works while every outermost backward
      reaches that parameter and nothing else queues a callback at the root.

    The first few backwards are cut at the root. Then a parameter takes over until it fails once;
    from then on the root is used again. A rank without peers waits for nobody: nothing is cut.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tape = tape = timeline.tape
        self._follow_training = never_raise(timeline.follow_training)
        # Guarded as bound methods of one argument, which costs half.
        self._hook_roots = never_raise(self.hook_roots)
        self._unhook_roots = never_raise(self.unhook_roots)
        queue_callback = find(
            torch.autograd,
            "Variable._execution_engine.queue_callback",
            "The wait for other ranks at the end of backward is part of `backward`.",
        )
        ready = functools.partial(tape.append, events.GRADIENTS_READY)
        # Several roots queue it several times; only the first call counts. `queue_callback` raises
        # only outside of a backward, where no hook runs.
        self._queue = lambda _: queue_callback(ready)
        self._can_cut = queue_callback is not None
        self._in_graph = running_graph()
        costs = "A backward that is cut at its root costs a few microseconds more."
        known = (
            find(torch, "Tensor._backward_hooks", costs),
            find(torch._C, "_FunctionBase._register_hook_dict", costs),
        )
        self._sets_hooks = None not in known
        self._cuts = False
        self._root_cuts = 0
        self._stays = False
        self._is_running = False
        self._parameter_hook: Any = None
        self._is_at_root = True  # or left alone, or left to the parameter's hook
        blind = "What a loop reads between DDP's forward and backward is `forward`."
        looks = ("_FunctionBase._sequence_nr", "_FunctionBase._input_metadata")
        can_look = None not in [find(torch._C, name, blind) for name in looks]
        so_far: Any = find(torch.autograd, "_get_sequence_nr", blind) if can_look else None
        self._graph_so_far = so_far
        self._graph_after_model: int | None = None

    def around(self, original: Callable[..., Any]) -> Any:
        """Return *original*, torch.autograd.backward, with its time noted."""
        timed = self._tape.around(
            original, events.BACKWARD_BEGINS, events.BACKWARD_ENDED, events.BACKWARD_RAISED
        )

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_at_root:
                return self._at_the_root(original, timed, args, kwargs)
            return timed(*args, **kwargs)

        return opaque(backward)

    def at_the_root(self) -> None:
        """Cut the next backward at its root, and all later ones if backwards are cut already.

        Needed if something else queues callbacks at the root, as FSDP does to wait, and with nested
        backwards (reentrant checkpointing): callbacks queued there run when the inner backward
        ends, which is too early. For any thread.
        """
        self._stays = self._cuts
        self._is_at_root = True

    def begin_again(self) -> None:
        """Look for peers, and cut the next few backwards at their root: the model is a new one.

        Otherwise the wait would count as `backward` until the old model's parameter is found to
        take no part any more. For any thread.
        """
        self._cuts, self._root_cuts, self._is_at_root = False, 0, True
        self._timeline.after_forward = self._graph_so_far and self._model_returned

    def _model_returned(self) -> None:
        self._graph_after_model = self._graph_so_far()

    @never_raise
    def look_for_loss(self, roots: Sequence[Any], after_model: int) -> None:
        """Record the end of DDP's forwards from now on if *roots* are a loss that one returned.

        Otherwise the loss is computed after DDP's forward, and computing it is part of `forward`.
        """
        self._graph_after_model = self._timeline.after_forward = None
        if _take_scalars(roots, after_model):
            ended = functools.partial(self._tape.note, events.FORWARD_ENDED)
            self._timeline.after_forward = ended

    def let_go(self) -> None:
        """Remove the parameter's hook; for the training thread."""
        if self._parameter_hook is not None:
            self._parameter_hook.remove()
            self._parameter_hook = None

    def _at_the_root(
        self,
        original: Callable[..., Any],
        timed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        is_others = get_ident() != self._tape.owner
        # Nested. On CUDA it runs on an engine thread, which must not be taken for the loop's.
        if self._is_running or (is_others and self._in_graph() != -1):
            self.at_the_root()
            return original(*args, **kwargs)
        if is_others and not self._follow_training():
            return original(*args, **kwargs)
        given = args[0] if args else kwargs.get("tensors")
        roots = _roots(given)
        if given is not None and not isinstance(given, _READ_AGAIN):
            # Perhaps an iterator, which torch must read too.
            if args:
                args = (roots, *args[1:])
            else:
                kwargs["tensors"] = roots
        if self._parameter_hook is not None:
            self.let_go()
        if not self._cuts:
            self.look_for_peers()
            if not self._timeline.loop:
                self._timeline.loop = _codes(sys._getframe(2))
        if self._graph_after_model is not None:
            self.look_for_loss(roots, self._graph_after_model)
        self._timeline.trains_on = _cuda_device(roots)
        self._is_running = True
        hooked: list[Any] | None = None
        try:
            if self._cuts and not _is_compiled():
                hooked = self._hook_roots(roots)
            return timed(*args, **kwargs)
        finally:
            self._is_running = False  # First: an interrupt may cut the rest short.
            if hooked is not None:
                self._unhook_roots(hooked)
                if not self._stays:
                    self.choose_parameter(roots)

    @never_raise
    def look_for_peers(self) -> None:
        """Start to cut backwards if this rank has peers; otherwise leave them alone."""
        self._cuts = self._can_cut and process_group.has_peers()
        if self._cuts:
            self._timeline.wait_for_peers()
        else:
            self._is_at_root = False

    def hook_roots(self, roots: Sequence[Any]) -> list[Any]:
        """Have the next backward cut at its root; return the hooks: each a dict or a handle."""
        hooked: list[Any] = []
        for root in roots:
            if (node := _node(root)) is None:
                continue
            # A graph node, a tensor subclass, or a torch without the private names.
            if type(root) is not torch.Tensor or not self._sets_hooks:
                hooked.append(node.register_prehook(self._queue))
                continue
            # As Tensor.register_hook does, at a fraction of its cost.
            hooks: Any = root._backward_hooks
            if hooks is None:
                hooks = root._backward_hooks = OrderedDict()
                node._register_hook_dict(root)
            others = hooks.copy() if hooks else None
            hooks.clear()
            hooks[self] = self._queue  # Other hooks have numbers as keys.
            if others is not None:  # They may queue callbacks, as FSDP's if its root returned it.
                hooks.update(others)
            hooked.append(hooks)
        return hooked

    def unhook_roots(self, hooked: list[Any]) -> None:
        """Remove the hooks from the graph, which the user may keep."""
        for each in hooked:
            if isinstance(each, dict):
                each.pop(self, None)
            else:
                each.remove()

    @never_raise
    def choose_parameter(self, roots: Sequence[Any]) -> None:
        """After a few cuts at the root, leave the next ones to a parameter that *roots* reach."""
        self._root_cuts += 1
        if self._root_cuts != ROOT_CUTS:
            return
        if (parameter := _a_parameter(map(_node, roots))) is not None:
            self._parameter_hook = parameter.register_post_accumulate_grad_hook(self._queue)
            self._is_at_root = False


def _is_compiled() -> bool:
    """Whether compiled autograd is on: a hook would break its graph.

    DDP and FSDP then wait in functional collectives, which are timed by themselves.
    """
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    # Without this name compiled autograd has a graph break in each backward.
    return bool(getattr(module, "compiled_autograd_enabled", False))


def _codes(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return the codes of *frame* and its callers."""
    codes: list[CodeType] = []
    while frame is not None and len(codes) < FRAMES_KEPT:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(codes)


def _roots(tensors: Any) -> Sequence[Any]:
    """Return the roots in *tensors*: one of them, or any iterable."""
    if isinstance(tensors, torch.Tensor) or hasattr(tensors, "node"):
        return (tensors,)
    if tensors is None:
        return ()
    return tensors if isinstance(tensors, (tuple, list)) else tuple(tensors)


@never_raise
def _cuda_device(roots: Sequence[Any]) -> int | None:
    """Return the CUDA device of the first of *roots* that is on one."""
    devices = (getattr(root, "device", None) for root in roots)
    return next((each.index for each in devices if each is not None and each.type == "cuda"), None)


def _node(root: Any) -> Any:
    """Return the graph's node that backward starts from; a leaf has none."""
    return getattr(root, "grad_fn", None) or getattr(root, "node", None)


def _take_scalars(roots: Iterable[Any], before: int) -> bool:
    """Whether *roots* depend only on scalars among the outputs of nodes older than *before*.

    That holds for a loss that the model returned, even if divided or scaled since: a few nodes.
    """
    edges = [(_node(root), getattr(root, "output_nr", 0)) for root in roots]
    for _ in range(NODES_AFTER_MODEL):
        if not edges:
            return True
        node, output = edges.pop()
        if node is None:
            continue
        if node._sequence_nr() >= before:
            edges.extend(node.next_functions)
        elif node._input_metadata[output].shape:
            return False
    return False


def _a_parameter(roots: Iterable[Any]) -> torch.nn.Parameter | None:
    """Return a parameter that the graph of *roots* reaches; None if there is no plain one."""
    waiting = [root for root in roots if root is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < NODES_SEARCHED:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        # FSDP1's parameters have this name, and their hooks run at other times. Without it backward
        # under FSDP1 may be cut too late, and a part of its wait is in `backward`.
        if type(leaf) is torch.nn.Parameter and not getattr(leaf, "_is_flat_param", False):
            return leaf
        if node not in seen:
            seen.add(node)
            waiting.extend(after for after, _ in node.next_functions if after is not None)
    return None

"""Times every wait for other ranks as `sync`, whichever stage it is part of.

The manual mode needs this too. Without it a slow stage seems equally long on every rank, because
the other ranks wait for the slow one inside the same stage.
"""

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

import torch
import torch.distributed

from rank_probe.guest.guard import never_raise
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.tape import NOBODY, Tape, around
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import find, wrap

# Here some rank continues without the others: a broadcast's root, a gather's leaves, either end of
# a message. COALESCED is NCCL's name for a batch of messages.
ONE_SIDED: Final = (
    "BROADCAST",
    "REDUCE",
    "GATHER",
    "SCATTER",
    "SEND",
    "RECV",
    "RECVANYSOURCE",
    "COALESCED",
)

# Without async_op, NCCL runs these on the caller's own stream, with no Work to wait for. The value
# says whether they release all ranks together. The names differ between torch versions.
ON_THE_CALLERS_STREAM: Final = {
    "allreduce": True,
    "allreduce_coalesced": True,
    "allgather": True,
    "allgather_coalesced": True,
    "allgather_into_tensor_coalesced": True,
    "_allgather_base": True,
    "all_gather_single": True,
    "all_gather_single_coalesced": True,
    "reduce_scatter": True,
    "_reduce_scatter_base": True,
    "reduce_scatter_tensor_coalesced": True,
    "reduce_scatter_single": True,
    "reduce_scatter_single_coalesced": True,
    "barrier": True,
    "alltoall": True,
    "alltoall_base": True,
    "all_to_all_single": True,
    "broadcast": False,
    "reduce": False,
    "gather": False,
    "scatter": False,
}


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time the waits of torch's collectives on *timeline*; `undo` the result to detach.

    A wait is a *release* if it lets all ranks of its group continue together.
    """
    tape = timeline.tape
    if torch.distributed.is_available():
        _explicit(tape, patches)
        _functional(tape, patches)
        _in_cpp(timeline, patches)


def _explicit(tape: Tape, patches: Patches) -> None:
    """Collectives called from Python: by the user, FSDP, pipelines, ZeRO, checkpoints."""
    distributed = torch.distributed
    # Nearly every one ends here.
    patches.wrap(distributed.Work, "wait", functools.partial(_work, tape))
    for name, releases in ON_THE_CALLERS_STREAM.items():
        stream = functools.partial(_collective, tape, releases)
        wrap(patches, distributed, f"ProcessGroup.{name}", stream, _if_private(name))
    barrier = functools.partial(_wait, tape, True)
    wrap(patches, distributed, "ProcessGroup.monitored_barrier", barrier)
    # The ranks of a new group look for each other in C++.
    new_group = functools.partial(_wait, tape, True)
    without = "The creation of a later group is part of `other`."
    wrap(patches, distributed.distributed_c10d, "_new_process_group_helper", new_group, without)
    # The rest has no group: waiting for a key or a future.
    wait = functools.partial(_wait, tape, False)
    without = "Waits for a future are part of the stage that they are in."
    wrap(patches, torch._C, "Future.wait", wait, without)
    for name in ("get", "multi_get", "wait", "barrier", "queue_pop"):
        wrap(patches, distributed, f"Store.{name}", wait)


def _if_private(name: str) -> str:
    """Return what is lost without a method of process groups that torch does not promise."""
    lost = "NCCL's wait in this call is not `sync`, if it is called without `async_op`."
    return lost if name.startswith("_") else ""


def _functional(tape: Tape, patches: Patches) -> None:
    """DTensor's collectives, and those that torch.compile has put into a graph.

    Patched below torch's operator, so Dynamo sees the unchanged operator.
    """
    operators = torch.ops._c10d_functional
    for name in ("wait_tensor", "wait_tensor.default"):  # Called by eager and by compiled code.
        operation = lambda original: Operation(_wait(tape, True, original))  # noqa: E731
        without = "Waits of tensor parallelism are part of `forward` and `backward`."
        wrap(patches, operators, f"{name}._op", operation, without)


def _in_cpp(timeline: Timeline, patches: Patches) -> None:
    """DDP's own broadcasts: buffers (BatchNorm's) in every forward, the bucket order in the second.

    Rank 0 sends both and does not wait for the others there. The same holds for the check of a
    model's parameters when DDP wraps it.
    """
    wait = functools.partial(_owners_wait, timeline.tape)
    without = "With BatchNorm, waits for rank 0 are part of `forward`."
    wrap(patches, torch.distributed, "_broadcast_coalesced", wait, without)
    rebuild = functools.partial(_rebuild, timeline.tape)
    without = "DDP exchanges the order of its buckets in the second step's `forward`."
    wrap(patches, torch.distributed, "Reducer._rebuild_buckets", rebuild, without)
    new_model = functools.partial(_new_model, timeline)
    without = "In a second model, up to a second of backward has its wait in it."
    wrap(patches, torch.distributed, "_verify_params_across_processes", new_model, without)


class Operation(functools.partial[Any]):
    """What an operator calls, and hashes as: torch.compile keeps operators in tables."""

    def __hash__(self) -> int:
        return hash(self.__wrapped__)  # type: ignore[attr-defined]  # set by Patches.wrap

    def __copy__(self) -> "Operation":
        return self

    def __deepcopy__(self, _: object) -> "Operation":
        return self


def running_graph() -> Callable[[], int]:
    """Return a function that identifies the calling thread's backward; it returns -1 outside one.

    On CUDA, nodes run on a thread of the autograd engine.
    """
    without = "Waits in a backward on CUDA are part of `backward`."
    return find(torch._C, "_current_graph_task_id", without) or (lambda: -1)


def noter(tape: Tape) -> Callable[[int], None]:
    """Return a function that records the owner's WAIT, WAITED and RELEASED from any thread.

    The nodes of the owner's backward may run on a thread of the autograd engine, which has one for
    each CUDA device.
    """
    graph = running_graph()

    def note(event: int) -> None:
        if get_ident() == tape.owner:
            tape.append(event)
        elif tape.owner != NOBODY and graph() != -1:
            tape.append(event + events.ENGINE_WAIT - events.WAIT)

    return note


def _owners_wait(tape: Tape, original: Callable[..., Any]) -> Any:
    """Time a call that only the owner makes, at most twice in every forward."""
    return opaque(around(tape.note, original, events.WAIT, events.WAITED))


def _rebuild(tape: Tape, original: Callable[..., Any]) -> Any:
    """Time the calls until one returns true: DDP calls in each forward, but rebuilds only once."""
    timed = _owners_wait(tape, original)
    done: set[int] = set()  # the reducers that need not wait any more

    def rebuild(self: Any, *args: Any, **kwargs: Any) -> Any:
        rebuilt = (original if id(self) in done else timed)(self, *args, **kwargs)
        if rebuilt:
            done.add(id(self))
            weakref.finalize(self, done.discard, id(self))  # A later model's may have its address.
        return rebuilt

    return opaque(rebuild)


def _new_model(timeline: Timeline, original: Callable[..., Any]) -> Any:
    checked = _owners_wait(timeline.tape, original)

    def check(*args: Any, **kwargs: Any) -> Any:
        timeline.new_model()
        return checked(*args, **kwargs)

    return opaque(check)


def _wait(tape: Tape, release: bool, original: Callable[..., Any]) -> Any:
    ended = events.RELEASED if release else events.WAITED
    return opaque(around(noter(tape), original, events.WAIT, ended))


def _work(tape: Tape, original: Callable[..., Any]) -> Any:
    note = noter(tape)
    without = "A step may end at a broadcast or a message."
    types = find(torch._C, "_distributed_c10d.OpType", without)
    kinds = (find(types, name) for name in ONE_SIDED)
    one_sided = {int(kind) for kind in kinds if kind is not None}
    tells = find(torch.distributed.Work, "_get_op_type", without) is not None

    @never_raise
    def is_one_sided(work: Any) -> bool:
        return tells and int(work._get_op_type()) in one_sided

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            note(events.WAIT)
            return original(self, *args, **kwargs)
        finally:
            note(events.WAITED if is_one_sided(self) else events.RELEASED)

    return opaque(wait)


def _collective(tape: Tape, releases: bool, original: Callable[..., Any]) -> Any:
    """Time the call if it is synchronous.

    Gloo returns a Work even then; its wait follows, and the release of that wait counts.
    """
    ended = events.RELEASED if releases else events.WAITED
    timed = around(noter(tape), original, events.WAIT, ended)

    def collective(*args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("opts") or args[-1]
        return (original if getattr(options, "asyncOp", True) else timed)(*args, **kwargs)

    return opaque(collective)

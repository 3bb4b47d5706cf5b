"""Time every wait for other ranks as `sync`, whichever stage it hides in.

Needed in the manual mode too: without it a slow stage is as long on every rank, since the others
spend the difference waiting inside theirs.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed

from rank_probe.guard import never_raise
from rank_probe.patches import Patches
from rank_probe.timeline import Timeline

# Some rank goes on here without the others: a broadcast's root, a gather's leaves, either end of a
# message. COALESCED is what NCCL calls a batch of messages.
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

# What NCCL runs on the caller's own stream, with no Work to wait for, when it is called without
# async_op; and whether it lets all ranks go together. The names differ between versions of torch.
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
    "alltoall": True,
    "alltoall_base": True,
    "all_to_all_single": True,
    "broadcast": False,
    "reduce": False,
    "gather": False,
    "scatter": False,
}


def attach(timeline: Timeline) -> Patches:
    """Time the waits of torch's collectives on *timeline*; `undo` the result to detach.

    A wait is a *release* when it lets all ranks of its group go together.
    """
    patches = Patches()
    if torch.distributed.is_available():
        _explicit(timeline, patches)
        _functional(timeline, patches)
        _in_cpp(timeline, patches)
    return patches


def _explicit(timeline: Timeline, patches: Patches) -> None:
    """Collectives called from Python: the user's, FSDP's, pipelines', ZeRO's, checkpoints'."""
    from torch._C._distributed_c10d import ProcessGroup, Store

    # Nearly every one ends here.
    patches.wrap(torch.distributed.Work, "wait", functools.partial(_work, timeline))
    for name, releases in ON_THE_CALLERS_STREAM.items():
        if hasattr(ProcessGroup, name):
            patches.wrap(ProcessGroup, name, functools.partial(_collective, timeline, releases))
    patches.wrap(ProcessGroup, "monitored_barrier", functools.partial(_wait, timeline, True))
    # A new group's ranks look for each other in C++.
    new_group = functools.partial(_wait, timeline, True)
    patches.wrap(torch.distributed.distributed_c10d, "_new_process_group_helper", new_group)
    # The rest knows no group: a key that somebody sets, a future that somebody completes.
    waits = [(Store, name) for name in ("get", "multi_get", "wait", "barrier", "queue_pop")]
    for owner, name in ((torch._C.Future, "wait"), *waits):
        if hasattr(owner, name):
            patches.wrap(owner, name, functools.partial(_wait, timeline, False))


def _functional(timeline: Timeline, patches: Patches) -> None:
    """DTensor's collectives, and every one that torch.compile has put into a graph.

    Patched below torch's operator, so that Dynamo sees the operator as ever.
    """
    operator = torch.ops._c10d_functional.wait_tensor
    for owner in (operator, operator.default):  # Eager code calls the one, compiled the other.
        patches.wrap(owner, "_op", functools.partial(_wait, timeline, True))


def _in_cpp(timeline: Timeline, patches: Patches) -> None:
    """DDP's own: its buffers (BatchNorm's) in every forward, its bucket order in the second.

    Both are broadcasts from rank 0, which does not wait for the others there.
    """
    from torch._C._distributed_c10d import Reducer

    for owner, name in (
        (torch.distributed, "_broadcast_coalesced"),
        (torch.distributed, "_verify_params_across_processes"),
        (Reducer, "_rebuild_buckets"),
    ):
        patches.wrap(owner, name, functools.partial(_wait, timeline, False))


def _wait(timeline: Timeline, release: bool, original: Callable[..., Any]) -> Any:
    enter, leave = timeline.enter_wait, timeline.leave_wait

    def wait(*args: Any, **kwargs: Any) -> Any:
        entered = enter()
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                leave(release)

    return _opaque(wait)


def _work(timeline: Timeline, original: Callable[..., Any]) -> Any:
    enter, leave = timeline.enter_wait, timeline.leave_wait
    operations: Any = torch._C._distributed_c10d
    one_sided = {int(getattr(operations.OpType, name)) for name in ONE_SIDED}

    @never_raise
    def is_one_sided(work: Any) -> bool:
        return int(work._get_op_type()) in one_sided

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered = enter()
        try:
            return original(self, *args, **kwargs)
        finally:
            if entered:
                leave(not is_one_sided(self))

    return _opaque(wait)


def _collective(timeline: Timeline, releases: bool, original: Callable[..., Any]) -> Any:
    """Time the call where the caller waits for it anyway.

    Gloo returns a Work even then; that wait follows, and its release counts.
    """
    enter, leave = timeline.enter_wait, timeline.leave_wait

    def collective(*args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("opts") or args[-1]
        if getattr(options, "asyncOp", True) or not enter():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            leave(releases)

    return _opaque(collective)


def _opaque(function: Any) -> Any:
    """Have Dynamo call *function* and not read it, as it does with what this replaces."""
    function._torchdynamo_disable = True
    return function

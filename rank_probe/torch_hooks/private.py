"""What the probe uses of torch that torch does not promise: a row for each name, and its absence.

Imports no torch: `rank-probe check` and the exporter's page read the sentences too.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from rank_probe.guest.patches import Patches

# The oldest and the newest minor release that the probe was tried with (make test-torch).
OLDEST: Final = "2.4"
NEWEST: Final = "2.15"


class Private(NamedTuple):
    """A *name* of torch, its module before the colon, and *why* the probe uses it.

    *since* is the first minor release that has it, '' if it is older than OLDEST; *until* the first
    that has it no more. *without* says what the probe does where it is missing. *instead* is
    another row's name that does the same there. What *is_read* is an attribute that torch sets on
    its objects, or looks for on ours: only its sources show it. What is *on_cuda* is missed only in
    a torch that was built for it.
    """

    name: str
    why: str
    without: str
    since: str = ""
    until: str = ""
    instead: str = ""
    is_read: bool = False
    on_cuda: bool = False

    def is_in(self, version: str) -> bool:
        """Whether the torch of *version* has it, as far as is known."""
        this = minor(version)
        return minor(self.since or "0.0") <= this < minor(self.until or "1000.0")


_FRAMES: Final = "torch._C:_dynamo.eval_frame"
_PIPELINING: Final = "torch.distributed.pipelining"

_ONE_SIDED: Final = "A step may end at a broadcast or a message."
_WITH_BREAKS: Final = "torch.compile also compiles the probe, with graph breaks around it."
_SAVE: Final = "A script that imported the public function early has its saves in `other`."
_FSDP2: Final = "Forward under FSDP2 begins only with a batch, and its wait may be in `backward`."
_ZERO_BUBBLE: Final = "There are no zero-bubble schedules, so none is timed."
_ROOT_HOOK: Final = "A backward that is cut at its root costs a few microseconds more."
_AFTER_MODEL: Final = "What a loop reads between DDP's forward and backward is `forward`."

TABLE: Final = (
    Private(
        "torch.autograd:Variable._execution_engine.queue_callback",
        "Notes the moment at which the last local gradient exists.",
        "The wait for other ranks at the end of backward is part of `backward`.",
    ),
    *(
        Private(
            name, "Sets a hook on a loss before those that are there, at little cost.", _ROOT_HOOK
        )
        for name in ("torch:Tensor._backward_hooks", "torch._C:_FunctionBase._register_hook_dict")
    ),
    *(
        Private(name, "Tells what of a loss was computed after DDP's forward.", _AFTER_MODEL)
        for name in ("torch.autograd:_get_sequence_nr", "torch._C:_FunctionBase._sequence_nr")
    ),
    Private(
        "torch._C:_FunctionBase._input_metadata",
        "Tells whether that began with a scalar, as a loss is.",
        _AFTER_MODEL,
        since="2.5",
    ),
    Private(
        "torch.distributed.fsdp._flat_param:_is_flat_param",
        "Tells FSDP1's parameters, whose hooks run at other times, from plain ones.",
        "Under FSDP1 backward may be cut too late, and a part of its wait is in `backward`.",
        is_read=True,
    ),
    Private(
        "torch._dynamo.compiled_autograd:compiled_autograd_enabled",
        "Tells when a hook on the graph would break compiled autograd's.",
        "Compiled autograd has a graph break in each backward.",
    ),
    Private(
        "torch.distributed:Work._get_op_type",
        "Tells collectives that release all ranks together from broadcasts and messages.",
        _ONE_SIDED,
    ),
    Private(
        "torch._C:_distributed_c10d.OpType",
        "Has the names of what `_get_op_type` returns.",
        _ONE_SIDED,
    ),
    *(
        Private(
            f"torch.distributed:ProcessGroup.{name}",
            f"Times {call} on the caller's stream.",
            "NCCL's wait in this call is not `sync`, if it is called without `async_op`.",
        )
        for name, call in (
            ("_allgather_base", "all_gather_into_tensor"),
            ("_reduce_scatter_base", "reduce_scatter_tensor"),
        )
    ),
    Private(
        "torch._C:Future",
        "Times waits for a future, as of DDP's communication hooks.",
        "Waits for a future are part of the stage that they are in.",
    ),
    Private(
        "torch.distributed.distributed_c10d:_new_process_group_helper",
        "Times the ranks' search for each other when a group is made.",
        "The creation of a later group is part of `other`.",
    ),
    Private(
        "torch:ops._c10d_functional.wait_tensor._op",
        "Times the waits of DTensor and of compiled graphs.",
        "Waits of tensor parallelism are part of `forward` and `backward`.",
    ),
    Private(
        "torch.distributed:Reducer._rebuild_buckets",
        "Times DDP's broadcast of the buckets' order in the second forward.",
        "DDP exchanges the order of its buckets in the second step's `forward`.",
    ),
    Private(
        "torch.distributed:_broadcast_coalesced",
        "Times DDP's broadcast of buffers at the start of each forward.",
        "With BatchNorm, waits for rank 0 are part of `forward`.",
    ),
    Private(
        "torch.distributed:_verify_params_across_processes",
        "Tells that DDP wraps a model, and times how it compares shapes then.",
        "In a second model, up to a second of backward has its wait in it.",
    ),
    Private(
        "torch._C:_current_graph_task_id",
        "Tells a wait on a thread of the autograd engine from one of another thread.",
        "Waits in a backward on CUDA are part of `backward`.",
    ),
    Private(
        "torch._dynamo.decorators:_torchdynamo_disable",
        "Set on the probe's functions, so that Dynamo does not compile them.",
        _WITH_BREAKS,
        is_read=True,
    ),
    *(
        Private(
            f"{_FRAMES}.{name}",
            "Makes Dynamo leave the probe's frames alone.",
            _WITH_BREAKS,
            since="2.7",
            instead=f"{_FRAMES}.skip_code",
        )
        for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    ),
    Private(
        f"{_FRAMES}.skip_code",
        "Makes Dynamo leave the probe's frames alone.",
        _WITH_BREAKS,
        until="2.7",
        instead=f"{_FRAMES}.set_code_exec_strategy",
    ),
    *(
        Private(name, "Times a save as `checkpoint`, whatever its function was imported as.", _SAVE)
        for name in (
            "torch.serialization:_save",
            "torch.serialization:_legacy_save",
            "torch.distributed.checkpoint.state_dict_saver:_save_state_dict",
            "torch.distributed.checkpoint.state_dict_saver:_stateful_to_state_dict",
        )
    ),
    Private(
        "torch.distributed.checkpoint.state_dict_loader:_load_state_dict",
        "Times reading distributed checkpoints.",
        _SAVE.replace("saves", "loads"),
    ),
    *(
        Private(
            f"torch._C:{name}",
            "Records device events without the objects and calls in Python around them.",
            "Each device event costs a few microseconds more.",
            on_cuda=True,
        )
        for name in (
            "_cuda_getCurrentRawStream",
            "_cuda_isCurrentStreamCapturing",
            "_CudaEventBase",
        )
    ),
    Private(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_pre_forward",
        "Notes where forward begins under FSDP2, and where it waits.",
        _FSDP2,
        since="2.6",
        instead="torch.distributed._composable.fsdp._fsdp_state:FSDPState._root_pre_forward",
    ),
    Private(
        "torch.distributed._composable.fsdp._fsdp_state:FSDPState._root_pre_forward",
        "The same, where FSDP2 was before.",
        _FSDP2,
        until="2.6",
        instead="torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_pre_forward",
    ),
    Private(
        "torch.distributed.fsdp._common_utils:_is_root",
        "Tells FSDP's root from the modules in it, where no forward begins.",
        "The start of forward is noted again in each module; no figure changes.",
        is_read=True,
    ),
    Private(
        f"{_PIPELINING}.stage:_PipelineStageBase",
        "Times the forward of each micro-batch, and tells the rank's pipeline stage.",
        "Chunks of a pipeline schedule are part of `other`.",
    ),
    *(
        Private(
            f"{_PIPELINING}.stage:stage_backward_{half}",
            f"Times the {half}'s half of backward in a zero-bubble schedule.",
            _ZERO_BUBBLE,
            since="2.5",
        )
        for half in ("input", "weight")
    ),
    Private(
        f"{_PIPELINING}.schedules:_PipelineSchedule._maybe_compute_loss",
        "Times the loss of a micro-batch as forward.",
        "The loss of a pipeline's micro-batch is part of `other`.",
    ),
    Private(
        "torch.distributed.distributed_c10d:_get_default_store",
        "Finds the store through which the ranks met, for the join.",
        "There is no join: each exporter compares the ranks of its own node.",
    ),
    Private(
        "torch.distributed.distributed_c10d:_update_default_pg",
        "Sees every default group that is formed or destroyed.",
        "A default group that is formed anew is not joined.",
    ),
    Private(
        "torch.utils.data.dataloader:_BaseDataLoaderIter",
        "Times the fetch of each batch.",
        "Fetching is part of `other`, and the batches' work is not counted.",
    ),
)


def find(owner: Any, path: str) -> Any:
    """Return what *owner* has at *path*, such as `Store.wait`; None if there is nothing."""
    for name in path.split("."):
        if owner is not None:
            owner = getattr(owner, name, None)
    return owner


def wrap(patches: Patches, owner: Any, path: str, make: Callable[[Any], Any]) -> None:
    """Have *patches* replace *path* of *owner* by *make*(it); what torch lacks stays so."""
    parent, _, name = path.rpartition(".")
    holder = find(owner, parent) if parent else owner
    if find(holder, name) is not None:
        patches.wrap(holder, name, make)


def minor(version: str) -> tuple[int, int]:
    """Return 2 and 8 for a version such as 2.8.0+cu128; (0, 0) for what is none."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def absent_from(version: str) -> list[Private]:
    """Return the rows that the torch of *version* has neither of its own nor another name for."""
    names = {row.name for row in TABLE if row.is_in(version)}
    return _lost(names)


def absent() -> list[Private]:
    """Return those that the torch of this process lacks; what it has not imported is not missed."""
    cuda = find(sys.modules.get("torch"), "version.cuda")
    untold = {row.name for row in TABLE if row.is_read or (row.on_cuda and cuda is None)}
    return _lost(untold | {row.name for row in TABLE if _is_there(row.name)})


def sentences(rows: Iterable[Private]) -> list[str]:
    """Return what the probe does without *rows*, each thing once."""
    return list(dict.fromkeys(row.without for row in rows))


def _lost(names: set[str]) -> list[Private]:
    return [row for row in TABLE if row.name not in names and row.instead not in names]


def _is_there(name: str) -> bool:
    """Say whether torch has *name*, or has not been asked for its module yet."""
    module, _, path = name.partition(":")
    if (loaded := sys.modules.get(module)) is not None:
        return find(loaded, path) is not None
    # What is imported of its packages tells whether it could be.
    while (package := module.rpartition(".")[0]) not in sys.modules and package:
        module = package
    return not package or importlib.util.find_spec(module) is not None

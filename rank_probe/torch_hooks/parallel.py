"""Finds the stages of sharded and pipelined models, inside FSDP and pipeline schedules.

The manual mode needs this too: no `with` block fits into a schedule.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.tape import around
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks.collectives import noter
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import wrap
from rank_probe.wire.stages import BACKWARD, FORWARD

# Modules that make the compute stream wait for exchanges on other streams: FSDP, also where it was
# before torch 2.6, and ZeRO.
APART: Final = (
    *("torch.distributed.fsdp", "torch.distributed._composable.fsdp"),
    "deepspeed.runtime.zero",
)


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time what FSDP, pipeline schedules and Megatron-core hide; `undo` the result to detach.

    Each module is patched when the user imports it: importing them all takes torch two seconds.
    """
    for name, patch in (
        ("torch.distributed.fsdp.fully_sharded_data_parallel", _fsdp1),
        ("torch.distributed.fsdp._fully_shard._fsdp_state", _fsdp2),
        ("torch.distributed._composable.fsdp._fsdp_state", _fsdp2),
        ("torch.distributed.pipelining.stage", _stages),
        ("torch.distributed.pipelining.schedules", _schedules),
        ("megatron.core.pipeline_parallel.schedules", _megatron),
        ("deepspeed.runtime.zero.stage3", _zero),
        ("deepspeed.runtime.zero.stage_1_and_2", _zero),
    ):
        patches.on_undo(when_imported(name, functools.partial(patch, timeline, patches)))
    # On CUDA, these make the compute stream wait for an event of their communication streams; they
    # call the collective's Work.wait on those.
    for name in ("wait_event", "wait_stream"):
        patches.wrap(torch.cuda.Stream, name, functools.partial(_stream_wait, timeline))


def _fsdp1(timeline: Timeline, patches: Patches, module: Any) -> None:
    make = functools.partial(_root_forward, timeline)
    wrap(patches, module, "FullyShardedDataParallel.forward", make)


def _fsdp2(timeline: Timeline, patches: Patches, module: Any) -> None:
    make = functools.partial(_root_forward, timeline)
    without = "Forward under FSDP2 begins only with a batch, and its wait may be in `backward`."
    wrap(patches, module, "FSDPState._root_pre_forward", make, without)


def _stages(timeline: Timeline, patches: Patches, module: Any) -> None:
    forward = functools.partial(_chunk, timeline, FORWARD)
    without = "Chunks of a pipeline schedule are part of `other`."
    wrap(patches, module, "_PipelineStageBase.forward_one_chunk", forward, without)
    # The two halves of backward in a zero-bubble schedule; whole ones call torch.autograd.backward.
    for name in ("stage_backward_input", "stage_backward_weight"):
        without = "There are no zero-bubble schedules, so none is timed."
        wrap(patches, module, name, functools.partial(_chunk, timeline, BACKWARD), without)


def _schedules(timeline: Timeline, patches: Patches, module: Any) -> None:
    forward = functools.partial(_chunk, timeline, FORWARD)
    without = "The loss of a pipeline's micro-batch is part of `other`."
    wrap(patches, module, "_PipelineSchedule._maybe_compute_loss", forward, without)
    for owner in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        wrap(patches, module, f"{owner}.step", functools.partial(_schedule, timeline))


def _megatron(timeline: Timeline, patches: Patches, module: Any) -> None:
    """Megatron-LM's default: it calls the engine itself, and waits for gradients afterwards."""
    if hasattr(module, "custom_backward"):
        backward = functools.partial(_whole_backward, timeline.tape.note)
        patches.wrap(module, "custom_backward", backward)


def _zero(timeline: Timeline, patches: Patches, module: Any) -> None:
    """ZeRO that overlaps: after backward it waits for the streams on which it reduces gradients."""
    for name in ("DeepSpeedZeroOptimizer_Stage3", "DeepSpeedZeroOptimizer"):
        if hasattr(owner := getattr(module, name, None), "independent_gradient_partition_epilogue"):
            make = functools.partial(_epilogue, timeline)
            patches.wrap(owner, "independent_gradient_partition_epilogue", make)


def _epilogue(timeline: Timeline, original: Callable[..., Any]) -> Any:
    timed = around(noter(timeline.tape), original, events.WAIT, events.RELEASED)

    def epilogue(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Stage 3 has no such attribute; without overlap its streams are that of the work.
        if not (getattr(self, "overlap_comm", True) and torch.cuda.is_initialized()):
            return original(self, *args, **kwargs)
        timeline.exchanges_apart = True
        return timed(self, *args, **kwargs)

    return epilogue


def _whole_backward(note: Callable[[int], object], original: Callable[..., Any]) -> Any:
    def custom_backward(*args: Any, **kwargs: Any) -> Any:
        ended = events.BACKWARD_RAISED
        try:
            note(events.BACKWARD_BEGINS)
            result = original(*args, **kwargs)
            ended = events.BACKWARD_ENDED
            return result
        finally:
            note(ended)

    return opaque(custom_backward)


def _root_forward(timeline: Timeline, original: Callable[..., Any]) -> Any:
    """Begin forward in a loop without a DataLoader; also called for the modules within the root."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Also called for inner modules; `_is_root` is None until the first call. On a torch without
        # this name, each module records the start of forward again, and no figure changes.
        if getattr(self, "_is_root", None) is not False:
            timeline.tape.note(forward_event())
        timeline.uncut()  # FSDP waits in a callback that it queues at the root.
        timeline.exchanges_apart = True
        return original(self, *args, **kwargs)

    return forward


def _stream_wait(timeline: Timeline, original: Callable[..., Any]) -> Any:
    """Time a wait of the compute stream if a module of APART calls it, not a wait for a copy."""
    timed = around(noter(timeline.tape), original, events.WAIT, events.RELEASED)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked_by = sys._getframe(1).f_globals.get("__name__", "")
        if not asked_by.startswith(APART) or self != torch.cuda.current_stream():
            return original(self, *args, **kwargs)
        return timed(self, *args, **kwargs)

    return opaque(wait)


def _schedule(timeline: Timeline, original: Callable[..., Any]) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        timeline.tape.note(forward_event())
        return original(*args, **kwargs)

    return step


def forward_event() -> int:
    """Return what a call of the root module is: forward of a batch, or part of an evaluation."""
    return events.FORWARD_BEGINS if torch.is_grad_enabled() else events.FORWARD_UNGRADED


def _chunk(timeline: Timeline, stage: int, original: Callable[..., Any]) -> Any:
    """Time one micro-batch's part of *stage*, except in an evaluation."""
    timed = around(timeline.tape.note, original, events.PART | stage, events.LEAVE)

    def chunk(*args: Any, **kwargs: Any) -> Any:
        return (timed if torch.is_grad_enabled() else original)(*args, **kwargs)

    return chunk

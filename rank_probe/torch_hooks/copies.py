"""Times copies of batches from the host to an accelerator as `h2d`."""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.tape import Tape, around
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks.private import wrap
from rank_probe.wire.stages import H2D

# Device types.
ACCELERATORS: Final = frozenset({"cuda", "hpu", "mps", "mtia", "npu", "privateuseone", "xpu"})

# Where frameworks move a whole batch: module and function. Each takes the batch, then
# the device. Lightning has two package names.
MOVERS: Final = (
    ("accelerate.data_loader", "send_to_device"),
    ("lightning.fabric.fabric", "move_data_to_device"),
    ("lightning.fabric.wrappers", "move_data_to_device"),
    ("lightning.pytorch.core.hooks", "move_data_to_device"),
    ("lightning.pytorch.strategies.strategy", "move_data_to_device"),
    ("lightning_fabric.fabric", "move_data_to_device"),
    ("lightning_fabric.wrappers", "move_data_to_device"),
    ("pytorch_lightning.core.hooks", "move_data_to_device"),
    ("pytorch_lightning.strategies.strategy", "move_data_to_device"),
    ("transformers.feature_extraction_utils", "BatchFeature.to"),
    ("transformers.tokenization_utils_base", "BatchEncoding.to"),
)


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time these functions once their modules are imported; `undo` the result to detach.

    Not seen: a loop that calls Tensor.to or Tensor.copy_ itself, and, on the host's clock, the part
    of a copy that continues after the call returned. Replacing Tensor.to would see more, but
    torch.compile breaks its graphs at a replaced method.
    """
    make = functools.partial(_move, timeline.tape)
    for module, path in MOVERS:
        patch = functools.partial(wrap, patches, path=path, make=make)
        patches.on_undo(when_imported(module, patch))


def _move(tape: Tape, original: Callable[..., Any]) -> Any:
    timed = around(tape.note, original, events.PART | H2D, events.LEAVE)

    def move(*args: Any, **kwargs: Any) -> Any:
        is_timed = _target(args[1:], kwargs) in ACCELERATORS
        return (timed if is_timed else original)(*args, **kwargs)

    return move


@never_raise
def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the type of the device that the batch moves to; None if none is given."""
    target = args[0] if args else kwargs.get("device")
    kind = type(target)
    if target is None or kind is torch.dtype:
        return None
    if kind is str:
        return str(target).partition(":")[0]
    if kind is int:  # Any accelerator; torch would have to ask the driver which one.
        return "cuda"
    return getattr(getattr(target, "device", target), "type", None)

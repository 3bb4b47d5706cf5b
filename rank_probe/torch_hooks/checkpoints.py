"""Times writing and reading checkpoints as `checkpoint`, except for the waits within.

This includes saves by transformers and Lightning. Evaluations of transformers' Trainer are timed
as `eval` here, because it reads its loader with gradients on and calls no DDP module.
"""

import functools
from typing import Any, Final

from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches, attaching
from rank_probe.measure import events
from rank_probe.measure.tape import Tape, around
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import find
from rank_probe.wire.stages import CHECKPOINT, EVAL

# The places where the functions are looked up. Those with an underscore are called by the public
# functions; they serve scripts that imported the public name before it was replaced. A name that
# another version lacks is skipped. torch.load is not here: it reads data sets just as often.
PLACES: Final = (
    ("torch.serialization", ("save", "_save", "_legacy_save")),
    ("torch", ("save",)),
    (
        "torch.distributed.checkpoint.state_dict_saver",
        ("save", "async_save", "save_state_dict", "_save_state_dict", "_stateful_to_state_dict"),
    ),
    (
        "torch.distributed.checkpoint.state_dict_loader",
        ("load", "load_state_dict", "_load_state_dict"),
    ),
    (
        "torch.distributed.checkpoint",
        ("save", "async_save", "save_state_dict", "load", "load_state_dict"),
    ),
    ("safetensors.torch", ("save_file", "serialize_file")),
    # The whole save: these also gather, write files themselves and delete older checkpoints.
    ("transformers.modeling_utils", ("PreTrainedModel.save_pretrained",)),
    ("transformers.trainer", ("Trainer._save_checkpoint",)),
    ("lightning.pytorch.trainer.trainer", ("Trainer.save_checkpoint",)),
    ("pytorch_lightning.trainer.trainer", ("Trainer.save_checkpoint",)),
)
EVALUATIONS: Final = (("transformers.trainer", ("Trainer.evaluate", "Trainer._evaluate")),)


@attaching
def attach(patches: Patches, timeline: Timeline) -> None:
    """Time checkpoints on *timeline*; `undo` the result to detach.

    Of an asynchronous save only the blocking part is timed; the rest runs on other threads. Modules
    are patched when the script imports them, because torch.distributed.checkpoint takes a second.
    """
    for places, stage in ((PLACES, CHECKPOINT), (EVALUATIONS, EVAL)):
        replacements = Replacements(timeline.tape, stage)
        for name, attributes in places:
            patch = functools.partial(_patch, patches, replacements, attributes)
            patches.on_undo(when_imported(name, patch))


class Replacements:
    """One wrapper per function for all its places: it pickles by name only if they are the same."""

    def __init__(self, tape: Tape, stage: int) -> None:
        self._tape, self._stage = tape, stage
        self._made: dict[Any, Any] = {}
        self._original: dict[Any, Any] = {}

    def original(self, function: Any) -> Any:
        """Return the original of *function*, or *function* itself if it was not replaced."""
        return self._original.get(function, function)

    def make(self, function: Any) -> Any:
        """Return a timed version of *function*."""
        if function not in self._made:
            begins, note = events.PART | self._stage, self._tape.note
            timed = self._made[function] = opaque(around(note, function, begins, events.LEAVE))
            self._original[timed] = function
        return self._made[function]


def _patch(
    patches: Patches, replacements: Replacements, attributes: tuple[str, ...], module: Any
) -> None:
    for path in attributes:
        holder, _, name = path.rpartition(".")
        owner = find(module, holder) if holder else module
        early = ""
        if name.startswith("_") and module.__name__.startswith("torch."):
            early = "Of functions that a script imported early, saves and loads are in `other`."
        if find(owner, name, early) is not None:
            # A package that is imported later copies what its modules hold at that moment.
            setattr(owner, name, replacements.original(getattr(owner, name)))
            patches.wrap(owner, name, replacements.make)

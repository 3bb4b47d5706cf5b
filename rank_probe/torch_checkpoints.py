"""Time the writing and reading of checkpoints as `checkpoint`, waits within them excepted."""

import functools
from collections.abc import Callable
from typing import Any, Final

from rank_probe.imports import when_imported
from rank_probe.patches import Patches
from rank_probe.stages import CHECKPOINT
from rank_probe.timeline import Timeline

# Where the functions are looked up when they are called. Those with an underscore are what the
# public ones call, for scripts that imported the public name before it was replaced; an attribute
# that another version lacks is skipped. Not torch.load: it reads data sets as often.
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
)


def attach(timeline: Timeline) -> Patches:
    """Time checkpoints on *timeline*; `undo` the result to detach.

    Of an asynchronous save only the part that blocks is timed: the rest runs on other threads.
    Modules are patched when the script imports them: torch.distributed.checkpoint takes a second.
    """
    patches = Patches()
    replacements = Replacements(timeline)
    for name, attributes in PLACES:
        patch = functools.partial(_patch, patches, replacements, attributes)
        patches.on_undo(when_imported(name, patch))
    return patches


class Replacements:
    """One for each function, whatever its places: it pickles by its name only if they agree."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._made: dict[Any, Any] = {}
        self._original: dict[Any, Any] = {}

    def original(self, function: Any) -> Any:
        """Return what *function* replaces, itself if it is none of these."""
        return self._original.get(function, function)

    def make(self, function: Any) -> Any:
        """Return what times *function*."""
        if function not in self._made:
            self._made[function] = _timed(self._timeline, function)
            self._original[self._made[function]] = function
        return self._made[function]


def _patch(
    patches: Patches, replacements: Replacements, attributes: tuple[str, ...], module: Any
) -> None:
    for name in attributes:
        if hasattr(module, name):
            # A package that is imported later takes over what its modules hold by then.
            setattr(module, name, replacements.original(getattr(module, name)))
            patches.wrap(module, name, replacements.make)


def _timed(timeline: Timeline, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        entered = timeline.enter_part(CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                timeline.leave()

    return checkpoint

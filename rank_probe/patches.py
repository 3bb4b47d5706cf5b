"""Replace attributes of other people's classes, and put them back."""

import sys
from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes replaced so far; `undo` restores them, last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace *owner*.*name* by *make*(the original)."""
        original = getattr(owner, name)
        replacement = make(original)
        replacement.__wrapped__ = original
        _hide_from_dynamo(replacement)
        own = vars(owner)
        if name in own:
            # Not `original`: of a pybind11 method that is a function that binds no self any more.
            stored = own[name]
            self._undo.append(lambda: setattr(owner, name, stored))
        else:  # Inherited, or a method of the class behind an instance.
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, replacement)

    def on_undo(self, restore: Callable[[], None]) -> None:
        """Call *restore* too when everything is put back."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _hide_from_dynamo(function: Any) -> None:
    """Keep torch.compile from tracing *function* itself; what it calls is compiled as ever."""
    eval_frame = getattr(sys.modules["torch"]._C._dynamo, "eval_frame", None)
    if eval_frame is not None and hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(function.__code__)

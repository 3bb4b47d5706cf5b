"""Replace attributes of other people's classes, and put them back."""

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
        own = vars(owner)
        if name in own:
            # Not `original`: what a class gives for a static or a C++ method may bind differently.
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

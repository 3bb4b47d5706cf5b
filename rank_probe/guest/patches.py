"""Replaces attributes of classes that are not ours, and restores them."""

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
            # Not `original`: accessing a static or C++ method on a class may bind it differently.
            stored = own[name]
            self._undo.append(lambda: setattr(owner, name, stored))
        else:  # Inherited, or a method of the instance's class.
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, replacement)

    def on_undo(self, restore: Callable[[], None]) -> None:
        """Also call *restore* when everything is restored."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Restore everything."""
        while self._undo:
            self._undo.pop()()

"""Replaces attributes that are not ours, and restores them."""

import functools
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any


class Patches:
    """Attributes replaced so far; `undo` restores them, last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace *owner*.*name* by *make*(the original), a function.

        It looks like the original, and is pickled as it is, by its name.
        """
        original = getattr(owner, name)
        if isinstance(original, MethodType) and not isinstance(owner, type):
            # Bound again, so that a copy of the owner gets a method of the copy.
            function = original.__func__
            bound = MethodType(_dressed(make(function), function), original.__self__)
            self._replace(owner, name, bound)
            return
        replacement = _dressed(make(original), original)
        self._replace(owner, name, replacement)
        if isinstance(owner, ModuleType) and not _is_found(replacement):
            # The original is defined elsewhere, where it was not replaced.
            replacement.__module__, replacement.__qualname__ = owner.__name__, name

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        own = vars(owner)
        if name in own:
            # Not what asking gives: accessing a static or C++ method on a class may bind it.
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


def _dressed(replacement: Any, original: Any) -> Any:
    replacement.__annotations__ = {}  # The original may have none.
    return functools.update_wrapper(replacement, original)


def _is_found(function: Any) -> bool:
    """Whether *function* is what its name leads to, as pickle demands."""
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is function

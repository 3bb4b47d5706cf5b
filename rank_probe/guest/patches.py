"""Replaces attributes that are not ours, and restores them."""

import functools
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any, Concatenate, ParamSpec

from rank_probe.guest.guard import never_raise

P = ParamSpec("P")


class Patches:
    """Attributes replaced so far; `undo` restores them, last first.

    A later replacement by other code stays. It may still call ours, which must then do no harm.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

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
        # Not getattr(): accessing a static or C++ method on a class may bind it.
        was_own, stored = name in vars(owner), vars(owner).get(name)

        def restore() -> None:
            if vars(owner).get(name) is not replacement:
                return
            if was_own:
                setattr(owner, name, stored)
            else:  # Inherited, or a method of the instance's class.
                delattr(owner, name)

        self._undo.append(restore)
        setattr(owner, name, replacement)

    def on_undo(self, restore: Callable[[], object]) -> None:
        """Also call *restore* when everything is restored."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Restore everything; a failed restore is counted and does not stop the others."""
        while self._undo:
            _call(self._undo.pop())


@never_raise
def _call(restore: Callable[[], object]) -> None:
    restore()


def attaching(attach: Callable[Concatenate[Patches, P], None]) -> Callable[P, Patches]:
    """Have *attach* return the patches that it fills; if it raises, they are undone."""

    @functools.wraps(attach)
    def attached(*args: P.args, **kwargs: P.kwargs) -> Patches:
        patches = Patches()
        try:
            attach(patches, *args, **kwargs)
        except BaseException:
            patches.undo()
            raise
        return patches

    return attached


def _dressed(replacement: Any, original: Any) -> Any:
    replacement.__annotations__ = {}  # The original may have none.
    return functools.update_wrapper(replacement, original)


def _is_found(function: Any) -> bool:
    """Whether *function* is what its name leads to, as pickle demands."""
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is function

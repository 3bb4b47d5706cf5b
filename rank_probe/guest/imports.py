"""Act when a module is imported, so that the probe imports only what the user needs anyway."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rank_probe.guest.guard import never_raise

Call = Callable[[ModuleType], object]


def when_imported(name: str, call: Call) -> Callable[[], None]:
    """Call *call* with the module *name* once it is imported; return a function that cancels.

    If it is imported already, this happens at once. Exceptions of *call* are counted and never
    reach the importing code.
    """
    call = never_raise(call)
    if (module := sys.modules.get(name)) is not None:
        call(module)
        return lambda: None
    return _watch.add(name, call)


def imported(name: str) -> Any | None:
    """Return the module *name*; None while nobody has imported it, or its import has not ended.

    Another thread sees a module from the import's beginning, with nothing in it.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


class _Watch(importlib.abc.MetaPathFinder):
    """Lets the other finders find modules, and notices when a found module is executed.

    Finding a module is not importing it: many libraries look for torch only to learn whether it is
    installed. They get the module's own spec and loader; only the loader's `exec_module` is
    replaced.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Call]] = {}

    def add(self, name: str, call: Call) -> Callable[[], None]:
        """Call *call* with the module *name* once; return a function that cancels."""
        self._calls.setdefault(name, []).append(call)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

        def cancel() -> None:
            waiting = self._calls.get(name, [])
            if call in waiting:
                waiting.remove(call)
            if not waiting:
                self._end(name)

        return cancel

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._calls:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None:
            self._listen_to(spec.loader)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec  # type: ignore[no-any-return]  # what any finder returns
        return None

    @never_raise
    def _listen_to(self, loader: Any) -> None:
        # A class is its own loader for what is built in; one instance may load a whole archive.
        if loader is None or isinstance(loader, type) or "exec_module" in vars(loader):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._has_run(module, loader)

        loader.exec_module = exec_module

    @never_raise
    def _has_run(self, module: ModuleType, loader: Any) -> None:
        name = module.__spec__.name if module.__spec__ is not None else module.__name__
        # Otherwise it is somebody's own copy, which is not what others import.
        if sys.modules.get(name) is module:
            vars(loader).pop("exec_module", None)
            for call in self._end(name):
                call(module)

    def _end(self, name: str) -> list[Call]:
        calls = self._calls.pop(name, [])
        if not self._calls and self in sys.meta_path:
            sys.meta_path.remove(self)
        return calls


_watch = _Watch()

"""Act when a module is imported, so that the probe imports only what the user needs anyway."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from rank_probe.guard import never_raise


def when_imported(name: str, call: Callable[[ModuleType], object]) -> Callable[[], None]:
    """Call *call* with the module *name* once it is imported; return a function that cancels.

    If it is imported already, this happens at once. Exceptions of *call* are counted and never
    reach the importing code.
    """
    call = never_raise(call)
    if (module := sys.modules.get(name)) is not None:
        call(module)
        return lambda: None
    finder = _Finder(name, call)
    sys.meta_path.insert(0, finder)
    return finder.leave


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for one module, and leaves finding it to the other finders."""

    def __init__(self, name: str, call: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._call = call

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._call)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads with the module's own loader, then calls back."""

    def __init__(self, loader: importlib.abc.Loader, call: Callable[[ModuleType], object]) -> None:
        self._loader = loader
        self._call = call

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)

"""Finds the user's method that a DataLoader's worker processes run.

The search reads the types of the loader's dataset and collate function. It never runs user code,
not even to read an attribute.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, Final

from rank_probe.lines.user_code import CodeLine

# In torch's lookup order.
METHODS: Final = ("__getitems__", "__getitem__")
ITERABLE: Final = "__iter__"
# The attributes in which a dataset that wraps others, such as a Subset, keeps them.
INNER: Final = ("dataset", "datasets")
DEEPEST: Final = 8


def workers_line(loader: Any, is_users: Callable[[str], bool]) -> CodeLine | None:
    """Return the first user line that *loader*'s workers run; None without workers or a line."""
    own = _attributes(loader)
    workers = own.get("num_workers")
    if type(workers) is not int or workers <= 0:
        return None
    dataset = own.get("dataset")
    for _ in range(DEEPEST):
        code = _code_of_type(type(dataset))
        if code is not None and is_users(code.co_filename):
            return _line(code)
        dataset = _inner(dataset)
    code = _code(own.get("collate_fn"))
    return _line(code) if code is not None and is_users(code.co_filename) else None


def _code_of_type(kind: type) -> types.CodeType | None:
    names = (ITERABLE,) if any(each.__name__ == "IterableDataset" for each in _mro(kind)) else ()
    for name in (*names, *METHODS):
        for each in _mro(kind):
            code = _code(type.__getattribute__(each, "__dict__").get(name))
            if code is not None:
                return code
    return None


def _mro(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return found


def _inner(dataset: Any) -> Any:
    own = _attributes(dataset)
    found = next((own[name] for name in INNER if name in own), None)
    return found[0] if type(found) in (list, tuple) and found else found


def _attributes(thing: Any) -> dict[str, Any]:
    """Return *thing*'s own `__dict__`, bypassing any attribute access that the user overrides."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _code(function: Any) -> types.CodeType | None:
    """Return the code object of a function, method, partial or callable object, else None."""
    if type(function) is types.MethodType:
        return _code(function.__func__)
    if type(function) is functools.partial:
        return _code(function.func)
    if type(function) is types.FunctionType:
        wrapped = _attributes(function).get("__wrapped__")
        return _code(wrapped) if type(wrapped) is types.FunctionType else function.__code__
    if function is None or isinstance(function, type):
        return None
    for each in _mro(type(function)):
        call = type.__getattribute__(each, "__dict__").get("__call__")
        if type(call) is types.FunctionType:
            return call.__code__
    return None


def _line(code: types.CodeType) -> CodeLine:
    return CodeLine(code.co_qualname, code.co_filename, code.co_firstlineno)

"""Keeps torch.compile away from the probe's functions; imports no Dynamo."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from rank_probe.guest.guard import never_raise
from rank_probe.torch_hooks.private import find

PACKAGE = __name__.partition(".")[0]
DIRECTORY = os.path.dirname(os.path.dirname(__file__)) + os.sep


@never_raise
def hide_probe() -> None:
    """Make Dynamo run every function of the probe uncompiled; what they call compiles as usual.

    Between two graphs Dynamo compiles each Python frame that it meets, including the probe's. That
    costs time, and adds graph breaks that the user's code does not have.
    """
    skip = _skip()
    if skip is None:  # A torch that has neither: it works, with graph breaks.
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE:
            for code in _codes(module):
                if code.co_filename.startswith(DIRECTORY):  # A module also holds what it imports.
                    skip(code)


def _skip() -> Callable[[CodeType], object] | None:
    """Return the function that makes Dynamo skip the frames of a code, part of torch's C++."""
    eval_frame: Any = find(sys.modules["torch"], "_C._dynamo.eval_frame")
    set_strategy = find(eval_frame, "set_code_exec_strategy")  # torch 2.7
    action, strategy = find(eval_frame, "_FrameAction"), find(eval_frame, "_FrameExecStrategy")
    if None in (set_strategy, action, strategy):
        without = "torch.compile also compiles the probe, with graph breaks around it."
        older: Callable[[CodeType], object] | None = find(eval_frame, "skip_code", without)
        return older
    skip = strategy(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, skip)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of everything that *module* defines, including nested functions."""
    classes = [each for each in vars(module).values() if inspect.isclass(each)]
    for owner in (module, *classes):
        for value in vars(owner).values():
            if isinstance(value, property):
                value = value.fget
            function = inspect.unwrap(value) if callable(value) else value
            for each in (value, function):
                if (code := getattr(each, "__code__", None)) is not None:
                    yield from _with_nested(code)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def opaque(function: Any) -> Any:
    """Make Dynamo call *function* without tracing it, as it does with what this replaces."""
    function._torchdynamo_disable = True
    return function

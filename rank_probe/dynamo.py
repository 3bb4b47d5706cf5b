"""Keep torch.compile away from the probe's own functions, without importing Dynamo."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from rank_probe.guard import never_raise

PACKAGE = __name__.partition(".")[0]
DIRECTORY = os.path.dirname(__file__) + os.sep


@never_raise
def hide_probe() -> None:
    """Have Dynamo run every function of the probe as it is; what they call is compiled as ever.

    Between two graphs Dynamo compiles each Python frame that it meets, ours too: that costs time,
    and graph breaks that the user's code does not have.
    """
    skip = _skip()
    if skip is None:  # A torch that has neither: there are graph breaks then, and it works.
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE:
            for code in _codes(module):
                if code.co_filename.startswith(DIRECTORY):  # A module also names what it imports.
                    skip(code)


def _skip() -> Callable[[CodeType], object] | None:
    """Return what has Dynamo skip the frames of a code, which is part of torch's C++."""
    eval_frame: Any = sys.modules["torch"]._C._dynamo.eval_frame
    if hasattr(eval_frame, "set_code_exec_strategy"):  # torch 2.8
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        return lambda code: eval_frame.set_code_exec_strategy(code, strategy)
    return getattr(eval_frame, "skip_code", None)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of all that *module* defines, functions within functions included."""
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

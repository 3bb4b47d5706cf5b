from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls
from exporter.nvml.readings.query import Ask


def power(handle: str, unit: int = 1) -> int:
    """A driver function: its answer tells what it was asked with."""
    return {"handle": 1, "part": 2}[handle] * unit


class Answering(Calls):
    """Calls through, unless *code* is an error."""

    def __init__(self) -> None:
        super().__init__(60.0, 60.0)
        self.code = pynvml.NVML_SUCCESS
        self.asked = 0

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self.asked += 1
        if self.code:
            raise CallFailed(function.__name__, gpu, self.code, "as the test wants")
        return function(*args, **kwargs)


def test_question_gets_the_handle_unless_it_is_raw() -> None:
    """The GPU's handle is the first argument; a raw question brings its own."""
    ask = Ask(0, "handle", Answering())

    assert ask(power, 10) == 10
    assert ask.raw(power, "part", 10) == 20
    assert (ask.has_answered, ask.failure) == (True, None)


@pytest.mark.parametrize("code", sorted(UNSUPPORTED))
def test_what_is_not_supported_is_not_asked_again(code: int) -> None:
    """A question that this GPU cannot answer costs one call per hour, for only these arguments."""
    calls = Answering()
    calls.code = code
    ask = Ask(0, "handle", calls)
    answers = [ask(power, 10) for _ in range(3)]

    assert answers == [None, None, None]
    assert calls.asked == 1
    assert not ask.supports(power, 10)
    calls.code = pynvml.NVML_SUCCESS
    assert ask(power, 20) == 20


def test_passing_failure_is_no_reading_now() -> None:
    """A timeout is noted as a failure, and the question asked again."""
    calls = Answering()
    calls.code = pynvml.NVML_ERROR_TIMEOUT
    ask = Ask(0, "handle", calls)

    assert ask(power) is None
    assert not ask.has_answered
    assert ask.failure is not None
    assert ask.failure.code == pynvml.NVML_ERROR_TIMEOUT
    assert ask.supports(power)
    ask.forget_answers()
    assert ask.failure is None


@pytest.mark.parametrize("code", sorted(GPU_LOST | PROCESS_OBSOLETE))
def test_loss_is_raised(code: int) -> None:
    """If the GPU is lost, or only a new process can continue, the caller must know."""
    calls = Answering()
    calls.code = code

    with pytest.raises(CallFailed):
        Ask(0, "handle", calls)(power)

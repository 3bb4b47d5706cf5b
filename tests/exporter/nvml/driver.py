"""A fake driver that answers by function name, for tests of what one GPU is asked."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pynvml

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.query import Ask


class Fails(Exception):
    """An answer: the call returns this nvmlReturn_t."""

    def __init__(self, code: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        super().__init__(code)
        self.code = code


TIMES_OUT = Fails(pynvml.NVML_ERROR_TIMEOUT)


class Driver(Calls):
    """Answers each function with *answers*: a value, a function of its arguments, or Fails.

    A function of ours that has no answer is run, on pynvml's. *asked* counts the calls.
    """

    def __init__(self, **answers: Any) -> None:
        super().__init__(60.0, 60.0)
        self.answers: dict[str, Any] = {"nvmlDeviceGetHandleByIndex": "handle"} | answers
        self.asked: Counter[str] = Counter()

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        try:
            if name in self.answers or function.__module__ == pynvml.__name__:
                return self._answer(name, *args)
            return self._run(function, *args)
        except pynvml.NVMLError as error:
            raise CallFailed(name, gpu, error.value, "as the test wants") from None

    def otherwise(self, name: str) -> Any:
        """Return the answer of a function that *answers* lacks: it is not supported."""
        return Fails()

    def fail(self, *names: str, code: int) -> None:
        """Let these functions fail from now on."""
        self.answers |= dict.fromkeys(names, Fails(code))

    def opened(self) -> Ask:
        """Return the GPU as it is when it was just opened."""
        return Ask(0, "handle", self)

    def _answer(self, name: str, *args: Any) -> Any:
        self.asked[name] += 1
        answer = self.answers[name] if name in self.answers else self.otherwise(name)
        try:
            if isinstance(answer, Fails):
                raise answer
            return answer(*args) if callable(answer) else answer
        except Fails as failure:
            raise pynvml.NVMLError(failure.code) from None

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        self.asked[function.__name__] += 1
        with ExitStack() as stack:
            refuse = mock.Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
            stack.enter_context(mock.patch.object(pynvml, "_nvmlGetFunctionPointer", refuse))
            for name in filter(partial(hasattr, pynvml), self.answers):
                stack.enter_context(mock.patch.object(pynvml, name, partial(self._answer, name)))
            return function(*args)


# The value of a field: of the usual type, or a type with the value and its member.
FieldAnswer = int | tuple[int, str, float] | Fails


def fields(answers: Mapping[Field, FieldAnswer]) -> Callable[..., Any]:
    """Answer nvmlDeviceGetFieldValues with *answers*, of which a test may change some."""

    def tell(handle: object, asked: Sequence[Field]) -> Any:
        entries = (pynvml.c_nvmlFieldValue_t * len(asked))()
        for entry, field in zip(entries, asked, strict=True):
            answer = answers.get(field, Fails())
            if isinstance(answer, Fails):
                entry.nvmlReturn = answer.code
            else:
                usual = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", answer
                entry.valueType, member, value = answer if isinstance(answer, tuple) else usual
                setattr(entry.value, member, value)
        return entries

    return tell

"""A fake driver that answers by function name, for tests of what one GPU is asked."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.query import Ask


class Fails(Exception):
    """An answer: the call returns this nvmlReturn_t."""

    def __init__(self, code: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        super().__init__(code)
        self.code = code


class Driver(Calls):
    """Answers each function with *answers*: a value, a function of its arguments, or Fails.

    What it has no answer for is not supported. *asked* counts the calls.
    """

    def __init__(self, **answers: Any) -> None:
        super().__init__(60.0, 60.0)
        self.answers: dict[str, Any] = answers
        self.asked: Counter[str] = Counter()

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        self.asked[name] += 1
        answer = self.answers.get(name, Fails())
        try:
            if isinstance(answer, Fails):
                raise answer
            return answer(*args) if callable(answer) else answer
        except Fails as failure:
            raise CallFailed(name, gpu, failure.code, "as the test wants") from None

    def opened(self) -> Ask:
        """Return the GPU as it is when it was just opened."""
        return Ask(0, "handle", self)


class Failing(Calls, ABC):
    """A driver whose functions in *codes* fail with that nvmlReturn_t; *asked* has every call."""

    def __init__(self, **codes: int) -> None:
        super().__init__(60.0, 60.0)
        self.codes = codes
        self.asked: list[str] = []

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        self.asked.append(name)
        if name in self.codes:
            raise CallFailed(name, gpu, self.codes[name], "as the test wants")
        return self.value(name, gpu)

    @abstractmethod
    def value(self, name: str, gpu: int | None) -> Any:
        """Return what the function *name* answers; may raise CallFailed."""

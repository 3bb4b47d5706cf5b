"""A fake driver that answers by function name, for tests of what one GPU is asked."""

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

    *asked* counts the calls.
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
        answer = self.answers[name] if name in self.answers else self.otherwise(name)
        try:
            if isinstance(answer, Fails):
                raise answer
            return answer(*args) if callable(answer) else answer
        except Fails as failure:
            raise CallFailed(name, gpu, failure.code, "as the test wants") from None

    def otherwise(self, name: str) -> Any:
        """Return the answer of a function that *answers* lacks: it is not supported."""
        return Fails()

    def fail(self, *names: str, code: int) -> None:
        """Let these functions fail from now on."""
        self.answers |= dict.fromkeys(names, Fails(code))

    def opened(self) -> Ask:
        """Return the GPU as it is when it was just opened."""
        return Ask(0, "handle", self)

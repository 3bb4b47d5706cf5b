"""Asks one open GPU: a value, or None where it has nothing to tell."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls

T = TypeVar("T")

# A driver update or a changed permission is noticed within the hour, at no cost before.
UNSUPPORTED_FOR_SECONDS: Final = 3600.0


class Ask:
    """One open GPU. What it does not support it is not asked again for an hour.

    Each of the GPU's jobs may ask from its own thread; two of them never ask the same question.
    """

    def __init__(self, index: int, handle: object, calls: Calls) -> None:
        self.index = index
        self._handle = handle
        self._calls = calls
        self._ask_again_at: dict[tuple[object, ...], float] = {}
        # Since forget_answers(): whether there was a value, and the last failure of another kind
        # than "not supported".
        self.has_answered = False
        self.failure: CallFailed | None = None

    def __call__(self, function: Callable[..., T], *args: object) -> T | None:
        """Return *function* of this GPU's handle and *args*; None: not supported, or not now.

        Raises CallFailed only when the GPU is lost or this process cannot go on.
        """
        return self._answer((function, *args), function, self._handle, *args)

    def raw(self, function: Callable[..., T], *args: object) -> T | None:
        """Do the same with *args* alone, as for the handle of a part of the GPU."""
        return self._answer((function, *args), function, *args)

    def forget_answers(self) -> None:
        """Begin to note anew whether there is a value, or a failure."""
        self.has_answered = False
        self.failure = None

    def supports(self, function: Callable[..., Any], *args: object) -> bool:
        """Whether this question is worth asking: it was not found unsupported lately."""
        return time.monotonic() >= self._ask_again_at.get((function, *args), 0.0)

    def _answer(
        self, question: tuple[object, ...], function: Callable[..., T], *args: object
    ) -> T | None:
        if time.monotonic() < self._ask_again_at.get(question, 0.0):
            return None
        try:
            value = self._calls(self.index, function, *args)
        except CallFailed as failure:
            if failure.code in GPU_LOST | PROCESS_OBSOLETE:
                raise
            if failure.code in UNSUPPORTED:
                self._ask_again_at[question] = time.monotonic() + UNSUPPORTED_FOR_SECONDS
            else:
                self.failure = failure
            return None
        self.has_answered = True
        return value

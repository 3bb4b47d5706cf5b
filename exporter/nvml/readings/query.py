"""Queries one open GPU: a value, or None if it has none."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from exporter.nvml.calls import GPU_LOST, PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls

T = TypeVar("T")

# A driver update or a changed permission is noticed within the hour, at no cost until then.
UNSUPPORTED_FOR_SECONDS: Final = 3600.0


class Ask:
    """One open GPU. What it does not support is not asked again for an hour.

    Each of the GPU's jobs may call it from its own thread; two jobs never ask the same question.
    """

    def __init__(self, index: int, handle: object, calls: Calls) -> None:
        self.index = index
        self._handle = handle
        self._calls = calls
        self._ask_again_at: dict[tuple[object, ...], float] = {}
        # Since forget_answers(): whether there was a value, and the last failure other than "not
        # supported".
        self.has_answered = False
        self.failure: CallFailed | None = None

    def __call__(self, function: Callable[..., T], *args: object) -> T | None:
        """Return *function* of this GPU's handle and *args*; None: not supported, or not now.

        Raises CallFailed only if the GPU is lost or this process cannot continue.
        """
        return self._answer((function, *args), function, self._handle, *args)

    def raw(self, function: Callable[..., T], *args: object) -> T | None:
        """Do the same with only *args*, for the handle of a part of the GPU."""
        return self._answer((function, *args), function, *args)

    def forget_answers(self) -> None:
        """Forget whether there was a value or a failure so far."""
        self.has_answered = False
        self.failure = None

    def supports(self, function: Callable[..., Any], *args: object) -> bool:
        """Whether to ask this: it was not found unsupported within the hour."""
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

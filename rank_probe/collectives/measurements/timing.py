"""Times an operation again and again, on the clock of the device that runs it.

Only warm-up begins with a barrier. A collective of these three ends on a rank only after every rank
has begun it, so repetitions that follow one another keep the ranks together by themselves; a
barrier between them would be timed too, or would give ranks different starts. Each repetition has
a time of its own, so that the median leaves out the few that something else held up.

gloo's calls block until they are done, so the host's clock tells. NCCL's only enqueue, so CUDA
events on the stream tell.
"""

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol

WARM_UP: Final = 3
FEWEST: Final = 5
MOST: Final = 2000


class Clock(Protocol):
    """Takes marks, and afterwards tells the seconds between them."""

    def mark(self) -> None:
        """Mark this moment, or the place in the device's queue."""

    def seconds(self) -> list[float]:
        """Return the seconds between marks, one fewer than marks."""


class HostClock:
    """For operations that block until they are done."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """Mark this moment."""
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds between marks."""
        return [after - before for before, after in pairwise(self._marks)]


class CudaClock:
    """For operations that are enqueued on the current CUDA stream."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> None:
        """Mark this place in the stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """Wait for the stream; return the seconds between marks."""
        self._events[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(self._events)]


def timed(operation: Callable[[], None], clock: Clock, repetitions: int) -> list[float]:
    """Return the seconds of each repetition of *operation*."""
    clock.mark()
    for _ in range(repetitions):
        operation()
        clock.mark()
    return clock.seconds()


def repetitions_in(seconds: float, once_seconds: float) -> int:
    """Return how often an operation of *once_seconds* is repeated in about *seconds*."""
    return min(max(math.ceil(seconds / max(once_seconds, 1e-9)), FEWEST), MOST)

"""When Python collected garbage: whichever thread allocates next does it, for all of them."""

import gc
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

LAST: Final = 16


class _Collection(NamedTuple):
    """From and until when, by the clock, and what it used of a CPU; all in nanoseconds."""

    began: int
    ended: int
    used: int


class Garbage:
    """Remembers the last collections by the threads for which *is_watched* holds."""

    def __init__(self, is_watched: Callable[[threading.Thread], bool]) -> None:
        self._is_watched = is_watched
        self._last: tuple[_Collection, ...] = ()  # Replaced, as one may come at any time.
        self._began = self._used = 0
        gc.callbacks.append(self._listen)

    def used(self, began: int, ended: int) -> int:
        """Return what collections used of a CPU between two nanoseconds of the clock."""
        return sum(
            each.used * _overlap(each, began, ended) // (each.ended - each.began)
            for each in self._last
        )

    def _listen(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began, self._used = time.perf_counter_ns(), time.thread_time_ns()
        elif self._is_watched(threading.current_thread()):
            used = time.thread_time_ns() - self._used
            new = _Collection(self._began, time.perf_counter_ns(), used)
            self._last = (*self._last[1 - LAST :], new)


def _overlap(collection: _Collection, began: int, ended: int) -> int:
    return max(0, min(ended, collection.ended) - max(began, collection.began))

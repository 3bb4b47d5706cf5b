"""How long Python's garbage collector has held the process."""

import gc
import time
from collections.abc import Callable

from rank_probe.patches import Patches


class GarbagePauses:
    """Adds up every collection, whichever thread set it off: all of them hold the GIL.

    The pauses lie within the stages that they interrupt.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._began: int | None = None
        self._nanoseconds = 0

    def attach(self) -> Patches:
        """Begin to listen to the collector; `undo` the result to stop."""
        patches = Patches()
        listen = self._listen  # A bound method is made anew each time it is asked for.
        gc.callbacks.append(listen)
        patches.on_undo(lambda: gc.callbacks.remove(listen))
        return patches

    def seconds(self) -> float:
        """Return the seconds spent collecting so far; any thread."""
        return self._nanoseconds / 1e9

    def _listen(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._now()
        elif self._began is not None:  # Attached within a collection: its end says nothing.
            self._nanoseconds += self._now() - self._began

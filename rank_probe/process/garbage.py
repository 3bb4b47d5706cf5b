"""How long Python's garbage collector has paused the process."""

import gc
import time
from collections.abc import Callable

from rank_probe.guest.patches import Patches


class GarbagePauses:
    """Sums up all collections, whichever thread triggered them: all of them hold the GIL.

    The pauses are part of the stages that they interrupt.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._began: int | None = None
        self._nanoseconds = 0

    def attach(self) -> Patches:
        """Start listening to the collector; `undo` the result to stop."""
        patches = Patches()
        listen = self._listen  # Each access creates a new bound method, so keep one to remove.
        gc.callbacks.append(listen)
        patches.on_undo(lambda: gc.callbacks.remove(listen))
        return patches

    def seconds(self) -> float:
        """Return the seconds spent collecting so far; any thread."""
        return self._nanoseconds / 1e9

    def _listen(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._now()
        elif self._began is not None:  # Else attached during this collection.
            self._nanoseconds += self._now() - self._began

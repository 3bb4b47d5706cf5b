"""How long Python's garbage collector has paused the process."""

import gc

from rank_probe.guest.patches import Patches

try:
    from rank_probe import _tape  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _tape = None


class GarbagePauses:
    """Sums up all collections, whichever thread triggered them: all of them hold the GIL.

    The pauses are part of the stages that they interrupt. The callback must be C: Python handles a
    signal that arrives during a collection in the next Python function. If that were the callback,
    Python would print and discard whatever the user's signal handler raises.
    """

    def __init__(self) -> None:
        self._listener = None if _tape is None else _tape.GarbageListener()

    def attach(self) -> Patches:
        """Start listening to the collector; `undo` the result to stop."""
        patches, listener = Patches(), self._listener
        if listener is not None:
            gc.callbacks.append(listener)
            patches.on_undo(self._stop)
        return patches

    def _stop(self) -> None:
        if self._listener in gc.callbacks:  # Somebody may have cleared the list.
            gc.callbacks.remove(self._listener)

    def seconds(self) -> float | None:
        """Return the seconds spent collecting so far; None where they are not measured."""
        return None if self._listener is None else self._listener.nanoseconds / 1e9

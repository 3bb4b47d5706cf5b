"""A thread that looks at something in /proc every few seconds, and may hang there."""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from exporter.errors import Failures


class WatchHangs(Exception):
    """The last look is too old to use: reading a process in /proc hangs, or fails each time."""


class BackgroundWatch(ABC):
    """Calls look() in a thread of its own between start() and stop().

    With finite *stale_seconds*, look() ends by setting *_looked_seconds* from *clock*; *hangs* says
    what hangs. An error in look() is counted in *failures*; the next look follows as usual.
    """

    def __init__(
        self,
        name: str,
        interval_seconds: float | None = None,
        stale_seconds: float = math.inf,
        hangs: str = "",
        clock: Callable[[], float] = time.monotonic,
        failures: Failures | None = None,
    ) -> None:
        self._failures = Failures() if failures is None else failures
        self._name = name
        self._interval_seconds = interval_seconds
        self._stale_seconds = stale_seconds
        self._hangs = hangs
        self._clock = clock
        self._looked_seconds = clock()
        self._stopping = threading.Event()
        self._changed = threading.Event()  # Set on stop(), or when the pause has changed.
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start looking."""
        self._looked_seconds = self._clock()
        self._thread = threading.Thread(
            target=self._look_until_stopped, name=self._name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a thread that hangs in /proc is left behind."""
        self._stopping.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(timeout=0.2)

    @abstractmethod
    def look(self) -> None:
        """Look now."""

    def _raise_if_it_hangs(self) -> None:
        quiet_seconds = self._clock() - self._looked_seconds
        if self._thread is not None and quiet_seconds > self._stale_seconds:
            failed = self._failed()
            raise WatchHangs(self._hangs if failed is None else f"every look fails: {failed!r}")

    def _failed(self) -> Exception | None:
        """Return what the last look raised."""
        return self._failures.last.get(self._name)

    def _pause(self) -> float | None:
        """Return the seconds until the next look; None: until something changes."""
        return self._interval_seconds

    def _look_until_stopped(self) -> None:
        while True:
            self._changed.clear()
            if self._stopping.is_set():
                return
            with self._failures.caught(self._name):
                self.look()
            self._changed.wait(self._pause())

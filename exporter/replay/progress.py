"""A progress line on stderr, for people who wait for a replay."""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

# Shorter work needs no progress line.
QUIET_SECONDS: Final = 1.0
EVERY_SECONDS: Final = 0.2


class ProgressLine:
    """Overwrites its line with the finished share; silent unless the stream is a terminal."""

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._is_watched = self._stream.isatty()
        self._now = now
        self._due = now() + QUIET_SECONDS
        self._width = 0

    def __call__(self, share: float) -> None:
        """Show this *share*, 0 to 1."""
        now = self._now()
        if self._is_watched and now >= self._due:
            self._due = now + EVERY_SECONDS
            self._write(f"{self._name}: {share:.0%}")

    def clear(self) -> None:
        """Erase the line."""
        if self._width:
            self._write("")
            self._stream.write("\r")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)

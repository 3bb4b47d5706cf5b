"""The tape: the events that the hooks note, each with its time, until somebody takes them.

Written twice, here and in _tape.c, which costs a quarter; tests hold the two together.
"""

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, Protocol

from rank_probe.guest.guard import failures

try:
    from rank_probe import _tape  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _tape = None

# With more events the tape has them folded: there is no pusher, or it is stuck.
LONG: Final = 1 << 16
# No thread has this identifier.
NOBODY: Final = 0


class Tape(Protocol):
    """The events of one thread, the owner, that nobody has taken yet. No method raises.

    *follower* is called with each code after it was appended, *on_long* while the tape is long.
    """

    owner: int
    follower: Callable[[int], object] | None
    on_long: Callable[[], object] | None

    def note(self, code: int, /) -> None:
        """Append the event *code* and the time, if the owner calls."""

    def append(self, code: int, /) -> None:
        """Append it, whichever thread calls."""

    def take(self) -> list[int]:
        """Return all events and forget them: code, nanoseconds, code, nanoseconds..."""


class PythonTape:
    """A tape in Python."""

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.owner = get_ident()
        self.follower: Callable[[int], object] | None = None
        self.on_long: Callable[[], object] | None = None
        self._now = now or time.perf_counter_ns
        self._events: list[int] = []

    def note(self, code: int, /) -> None:
        """See Tape."""
        if get_ident() == self.owner:
            self.append(code)

    def append(self, code: int, /) -> None:
        """See Tape."""
        try:
            # Both or, if the user interrupts, neither.
            self._events.extend((code, self._now()))
            if self.follower is not None:
                self.follower(code)
            if len(self._events) > 2 * LONG and self.on_long is not None:
                self.on_long()
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every event
            failures.note("Tape.append")

    def take(self) -> list[int]:
        """See Tape."""
        length = len(self._events)  # The owner may append meanwhile.
        taken = self._events[:length]
        del self._events[:length]
        return taken


def python_around(
    tape: Tape,
    original: Callable[..., Any],
    begin: int,
    end: int,
    raised: int,
    asks: Callable[[], object] | None = None,
    otherwise: int = 0,
    tells: Callable[[Any], object] | None = None,
) -> Any:
    """Return *original*, with an event noted before and after each call by the tape's owner.

    *begin* is noted before, then *end*, or *raised* if it raises. Where *asks* returns something
    false, *otherwise* replaces *begin*. *tells* is called with what *original* returned, before
    *end* is noted; it must not raise. While the result has an `instead` that is not None, that is
    called and nothing noted.
    """
    note = tape.note

    def around(*args: Any, **kwargs: Any) -> Any:
        instead = around.instead  # type: ignore[attr-defined]  # set below
        if instead is not None:
            return instead(*args, **kwargs)
        if get_ident() != tape.owner:
            return original(*args, **kwargs)
        last = raised
        try:
            note(begin if asks is None or asks() else otherwise)
            result = original(*args, **kwargs)
            if tells is not None:
                tells(result)
            last = end
            return result
        finally:
            note(last)

    around.instead = None  # type: ignore[attr-defined]  # functions take attributes
    return around


new_tape: Callable[..., Tape] = PythonTape if _tape is None else _tape.Tape
around = python_around if _tape is None else _tape.Around

"""The tape: the events that the hooks record, each with its time, until a reader takes them.

The tape exists twice: here, and in _tape.c at a third of the cost. Tests keep the two equal.
Whatever replaces a function of torch is a Python function, even if it calls C.
"""

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, Protocol

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import packed

try:
    from rank_probe import _tape  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _tape = None

# A tape with more events calls *on_long* to fold them: the pusher is missing or stuck.
LONG: Final = 1 << 16
# No thread has this identifier.
NOBODY: Final = 0

# The positional and the keyword arguments of a call.
Arguments = tuple[Any, ...]
Named = dict[str, Any]


class Tape(Protocol):
    """The events of one thread, the owner, that nobody has taken yet.

    No method raises an Exception; KeyboardInterrupt and SystemExit pass through.

    *follower* is called with each code after it was appended, *on_long* while the tape is long.
    """

    owner: int
    follower: Callable[[int], object] | None
    on_long: Callable[[], object] | None

    def note(self, code: int, /) -> bool:
        """Append the event *code* and the time if the owner calls; return whether it does."""

    def append(self, code: int, /) -> None:
        """Append the event *code* and the time, whichever thread calls."""

    def take(self) -> bytes:
        """Return all events and forget them: codes and nanoseconds, packed."""

    def around(
        self, original: Callable[..., Any], begins: int, ended: int, raised: int, /
    ) -> Callable[..., Any]:
        """Return *original* with an event noted before each call and after it."""

    def fetching(
        self,
        original: Callable[[Any], Any],
        tell: Callable[[Any], object],
        count: Callable[[int], object] | None,
        gradients: Callable[[], bool],
        begins: int,
        ungraded: int,
        ended: int,
        raised: int,
        /,
    ) -> Callable[[Any], Any]:
        """Return *original*, `next` of an iterator of batches, with its fetches noted.

        *begins* is noted while *gradients* are on, else *ungraded*. *tell* is called with each
        batch that the owner fetches, before *ended* is noted; or *count* may be, with the rows of
        the first tensor of a list or tuple.
        """

    def noting(
        self, code: int, tell: Callable[[Arguments, Named], object] | None, /
    ) -> Callable[[object, Arguments, Named], Any]:
        """Return a hook that records *code* when an optimizer's step begins or ends.

        The hook gets the optimizer and the step's arguments, of which the first is the optimizer
        again. If there are others and the owner calls, the hook returns *tell*(args, kwargs).
        """


class PythonTape:
    """A tape in Python."""

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.owner = get_ident()
        self.follower: Callable[[int], object] | None = None
        self.on_long: Callable[[], object] | None = None
        self._now = now or time.perf_counter_ns
        self._events: list[int] = []

    def note(self, code: int, /) -> bool:
        """See Tape."""
        if get_ident() != self.owner:
            return False
        self.append(code)
        return True

    def append(self, code: int, /) -> None:
        """See Tape."""
        try:
            # One call: an interrupt must not leave a code without its time.
            self._events.extend((code, self._now()))
            if self.follower is not None:
                self.follower(code)
            if len(self._events) > 2 * LONG and self.on_long is not None:
                self.on_long()
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every event
            failures.note("Tape.append")

    def take(self) -> bytes:
        """See Tape."""
        length = len(self._events)  # The owner may append meanwhile.
        taken = self._events[:length]
        del self._events[:length]
        return packed(taken)

    def around(
        self, original: Callable[..., Any], begins: int, ended: int, raised: int, /
    ) -> Callable[..., Any]:
        """See Tape."""

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                self.note(begins)
                result = original(*args, **kwargs)
            except BaseException:
                self.note(raised)
                raise
            self.note(ended)
            return result

        return call

    def fetching(
        self,
        original: Callable[[Any], Any],
        tell: Callable[[Any], object],
        count: Callable[[int], object] | None,
        gradients: Callable[[], bool],
        begins: int,
        ungraded: int,
        ended: int,
        raised: int,
        /,
    ) -> Callable[[Any], Any]:
        """See Tape."""

        def fetch(iterator: Any) -> Any:
            try:
                is_noted = self.note(begins if gradients() else ungraded)
                batch = original(iterator)
                if is_noted:
                    tell(batch)
            except BaseException:
                self.note(raised)
                raise
            self.note(ended)
            return batch

        return fetch

    def noting(
        self, code: int, tell: Callable[[Arguments, Named], object] | None, /
    ) -> Callable[[object, Arguments, Named], Any]:
        """See Tape."""

        def call(_: object, args: Arguments, kwargs: Named) -> Any:
            if self.note(code) and tell is not None and (kwargs or len(args) > 1):
                return tell(args, kwargs)
            return None

        return call


def fetching(
    tape: Tape,
    original: Callable[[Any], Any],
    tell: Callable[[Any], object],
    gradients: Callable[[], bool] = lambda: True,
    count: Callable[[int], object] | None = None,
) -> Callable[[Any], Any]:
    """Return *original*, `next` of an iterator of batches, with its fetches by the owner noted.

    *tell* is called with each of those batches, or *count* with its rows; they must not raise.
    *gradients* returns whether gradients are on.
    """
    fetch = tape.fetching(
        original,
        tell,
        count,
        gradients,
        events.FETCH,
        events.FETCH_UNGRADED,
        events.FETCHED,
        events.EXHAUSTED,
    )

    def __next__(self: Any) -> Any:
        return fetch(self)

    return __next__


def around(
    note: Callable[[int], object], original: Callable[..., Any], begins: int, ended: int
) -> Callable[..., Any]:
    """Return *original* with an event noted before each call and after it, also if it raises."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        try:
            note(begins)
            return original(*args, **kwargs)
        finally:
            note(ended)

    return noted


new_tape: Callable[..., Tape] = PythonTape if _tape is None else _tape.Tape

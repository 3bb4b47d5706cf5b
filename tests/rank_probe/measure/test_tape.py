"""Tests of the tape, in Python and in C: both keep the same promises."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from rank_probe.guest.guard import failures
from rank_probe.measure import tape as module
from rank_probe.measure.tape import LONG, NOBODY, PythonTape, Tape, new_tape, python_around
from tests.rank_probe.fake_time import FakeTime, elsewhere

BEGIN, END, RAISED, OTHERWISE = 16, 32, 48, 64
CODES = BEGIN, END, RAISED


class Kind(NamedTuple):
    """One of the two ways to make a tape, and to note on it."""

    new: Callable[..., Tape]
    around: Callable[..., Any]


@pytest.fixture(params=["python", "c"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of them; the second only where a compiler built it."""
    if request.param == "python":
        return Kind(PythonTape, python_around)
    if new_tape is PythonTape:
        pytest.skip("the extension module is not built: there is no C compiler")
    return Kind(new_tape, module.around)


@pytest.fixture
def tape(kind: Kind) -> Tape:
    return kind.new()


def codes(tape: Tape) -> list[int]:
    return tape.take()[::2]


def test_events_are_taken_once_in_order_with_their_times(kind: Kind) -> None:
    """What is taken is gone, and times are those of the clock: perf_counter's by default."""
    now = FakeTime()
    tape = kind.new(now)
    tape.note(BEGIN)
    now.pass_(5)
    tape.note(END)
    assert tape.take() == [BEGIN, 1_000, END, 1_005]
    assert tape.take() == []

    tape, before = kind.new(), time.perf_counter_ns()
    tape.note(BEGIN)
    assert before <= tape.take()[1] <= time.perf_counter_ns()


def test_other_threads_note_nothing_but_may_append(tape: Tape) -> None:
    """A checkpointing thread's stages are not the training thread's; an engine's callback is."""
    elsewhere(lambda: tape.note(BEGIN), lambda: tape.append(END))

    assert codes(tape) == [END]


def test_tape_without_an_owner_notes_nothing(tape: Tape) -> None:
    """A forked child inherits the hooks but is not the rank."""
    owner, tape.owner = tape.owner, NOBODY
    tape.note(BEGIN)
    tape.owner = owner
    tape.note(END)

    assert codes(tape) == [END]


def test_follower_hears_each_event_and_may_leave(tape: Tape) -> None:
    """It runs after the event was appended, so it can take it."""
    heard: list[tuple[int, list[int]]] = []

    def follow(code: int) -> None:
        heard.append((code, codes(tape)))
        if code == END:
            tape.follower = None

    tape.follower = follow
    for code in CODES:
        tape.note(code)

    assert heard == [(BEGIN, [BEGIN]), (END, [END])]


def test_long_tape_asks_to_be_taken(tape: Tape) -> None:
    """A very fast loop does not grow while nobody reads."""
    taken: list[int] = []
    tape.on_long = lambda: taken.append(len(tape.take()))
    for _ in range(LONG + 2):
        tape.note(BEGIN)

    assert taken == [2 * (LONG + 1)]


def broken_time() -> int:
    raise RuntimeError("ours")


def test_broken_parts_of_ours_never_reach_the_caller(kind: Kind, tape: Tape) -> None:
    """Not a follower that raises, nor one that is no function, nor a clock; theirs passes."""
    tape.follower = "not a function"  # type: ignore[assignment]
    tape.note(BEGIN)
    tape.follower = lambda code: 1 / 0
    tape.note(END)
    assert codes(tape) == [BEGIN, END]

    def theirs() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        kind.around(kind.new(broken_time), theirs, *CODES)()


def test_around_notes_before_and_after_and_tells_what_was_returned(kind: Kind, tape: Tape) -> None:
    """Whoever folds the end finds what was told."""
    told: list[tuple[int, list[int]]] = []

    def add(a: int, *, b: int) -> int:
        assert codes(tape) == [BEGIN]
        return a + b

    wrapped = kind.around(tape, add, *CODES, tells=lambda x: told.append((x, codes(tape))))

    assert wrapped(1, b=2) == 3
    assert told == [(3, [])]
    assert codes(tape) == [END]


def test_around_passes_the_users_exception(kind: Kind, tape: Tape) -> None:
    """The very same one, and another event tells."""
    tape.follower = lambda _: None  # It runs while the exception passes.
    told: list[object] = []
    error = StopIteration("theirs")

    def raises() -> None:
        raise error

    with pytest.raises(StopIteration) as caught:
        kind.around(tape, raises, *CODES, tells=told.append)()

    assert caught.value is error
    assert codes(tape) == [BEGIN, RAISED]
    assert told == []


def test_user_may_interrupt_what_is_told(kind: Kind, tape: Tape) -> None:
    """A KeyboardInterrupt is the user's, wherever it arrives."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind.around(tape, str.upper, *CODES, tells=interrupted)("a")

    assert codes(tape) == [BEGIN, RAISED]


@pytest.mark.parametrize(("answer", "begin"), [(True, BEGIN), (False, OTHERWISE)])
def test_around_asks_which_event_begins(kind: Kind, tape: Tape, answer: bool, begin: int) -> None:
    """A fetch with gradients off is another event."""
    kind.around(tape, int, *CODES, lambda: answer, OTHERWISE)()

    assert codes(tape) == [begin, END]


def test_around_is_nothing_on_other_threads(kind: Kind, tape: Tape) -> None:
    """The function runs; nothing is noted or told."""
    told: list[object] = []
    wrapped = kind.around(tape, told.append, *CODES, tells=told.append)
    elsewhere(lambda: wrapped("theirs"))

    assert told == ["theirs"]
    assert codes(tape) == []


def test_around_can_be_replaced_in_place(kind: Kind, tape: Tape) -> None:
    """Whoever holds the wrapper sees it change, and change back."""
    wrapped = kind.around(tape, int, *CODES)
    wrapped.instead = lambda *args, **kwargs: (args, kwargs)
    assert wrapped(1, a=2) == ((1,), {"a": 2})
    assert codes(tape) == []
    wrapped.instead = None
    assert wrapped("7") == 7
    assert codes(tape) == [BEGIN, END]


def test_around_binds_like_a_function(kind: Kind, tape: Tape) -> None:
    """On a class it is a method, `for` loops find it, and it carries attributes."""

    class Numbers:
        left = 3

        def __iter__(self) -> Iterator[int]:
            return self  # type: ignore[return-value]  # __next__ is set below

    def original(self: Numbers) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left

    wrapped = kind.around(tape, original, *CODES)
    wrapped.__wrapped__ = original
    Numbers.__next__ = wrapped  # type: ignore[attr-defined]

    assert list(Numbers()) == [2, 1, 0]
    assert codes(tape) == [BEGIN, END] * 3 + [BEGIN, RAISED]
    assert Numbers().__next__() == 2  # type: ignore[attr-defined]
    assert wrapped.__wrapped__ is original


def test_cycles_are_collected(kind: Kind) -> None:
    """A probe that stopped leaves nothing behind, though its parts hold each other."""

    class Owner:
        def __init__(self) -> None:
            self.tape = kind.new()
            self.tape.follower = self.hear
            self.around = kind.around(self.tape, int, *CODES, tells=self.hear)
            self.around.instead = self.hear

        def hear(self, _: object) -> None:
            return None

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()

    assert gone() is None


def test_python_counts_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tape in Python counts a failure like every part of the probe."""
    monkeypatch.setattr(failures, "count", 0)
    PythonTape(broken_time).note(BEGIN)

    assert failures.count == 1

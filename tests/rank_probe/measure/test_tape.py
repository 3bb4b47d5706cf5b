"""Tests of the tape, in Python and in C: both keep the same promises."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure.tape import (
    LONG,
    NOBODY,
    PythonTape,
    Tape,
    around,
    hook,
    new_tape,
    python_around,
    python_hook,
)
from tests.rank_probe.fake_time import FakeTime

BEGIN, END, RAISED, OTHERWISE = 16, 32, 48, 64


class Kind:
    """One of the two ways to make a tape, and hooks for it."""

    def __init__(
        self, new: Callable[..., Tape], around: Callable[..., Any], hook: Callable[..., Any]
    ) -> None:
        self.new, self.around, self.hook = new, around, hook


@pytest.fixture(params=["python", "c"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of them; the second only where a compiler built it."""
    if request.param == "python":
        return Kind(PythonTape, python_around, python_hook)
    if new_tape is PythonTape:
        pytest.skip("the extension module is not built: there is no C compiler")
    return Kind(new_tape, around, hook)


def codes(tape: Tape) -> list[int]:
    return tape.take()[::2]


def test_events_are_taken_once_in_order_with_their_times(kind: Kind) -> None:
    """What is taken is gone, and times are those of the clock."""
    time = FakeTime()
    tape = kind.new(time)
    tape.note(BEGIN)
    time.pass_(5)
    tape.note(END)

    assert tape.take() == [BEGIN, 1_000, END, 1_005]
    assert tape.take() == []


def test_time_is_that_of_perf_counter(kind: Kind) -> None:
    """Elapsed times are computed with it."""
    import time

    tape = kind.new()
    before = time.perf_counter_ns()
    tape.note(BEGIN)

    assert before <= tape.take()[1] <= time.perf_counter_ns()


def test_other_threads_note_nothing_but_may_append(kind: Kind) -> None:
    """A checkpointing thread's stages are not the training thread's; an engine's callback is."""
    tape = kind.new()

    def elsewhere() -> None:
        tape.note(BEGIN)
        tape.append(END)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert codes(tape) == [END]


def test_tape_without_an_owner_notes_nothing(kind: Kind) -> None:
    """A forked child inherits the hooks but is not the rank."""
    tape = kind.new()
    owner, tape.owner = tape.owner, NOBODY
    tape.note(BEGIN)
    tape.owner = owner
    tape.note(END)

    assert codes(tape) == [END]


def test_follower_hears_each_event_and_may_leave(kind: Kind) -> None:
    """It runs after the event was appended, so it can take it."""
    tape = kind.new()
    heard: list[tuple[int, list[int]]] = []

    def follow(code: int) -> None:
        heard.append((code, codes(tape)))
        if code == END:
            tape.follower = None

    tape.follower = follow
    for code in (BEGIN, END, RAISED):
        tape.note(code)

    assert heard == [(BEGIN, [BEGIN]), (END, [END])]


def test_long_tape_asks_to_be_taken(kind: Kind) -> None:
    """A very fast loop does not grow while nobody reads."""
    tape = kind.new()
    taken: list[int] = []
    tape.on_long = lambda: taken.append(len(tape.take()))
    for _ in range(LONG + 2):
        tape.note(BEGIN)

    assert taken == [2 * (LONG + 1)]


def test_broken_parts_of_ours_never_reach_the_caller(kind: Kind) -> None:
    """Not a follower that raises, nor one that is not even a function."""
    tape = kind.new()
    tape.follower = "not a function"  # type: ignore[assignment]
    tape.note(BEGIN)
    tape.follower = lambda code: 1 / 0
    tape.note(END)

    assert codes(tape) == [BEGIN, END]


def broken_time() -> int:
    raise RuntimeError("ours")


def test_clock_that_raises_never_reaches_the_caller(kind: Kind) -> None:
    """Nor what it leaves behind an exception of the user's."""
    tape = kind.new(broken_time)

    def theirs() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        kind.around(tape, theirs, BEGIN, END, RAISED)()


def test_around_notes_before_and_after(kind: Kind) -> None:
    """The function gets its arguments and returns its result."""
    tape = kind.new()

    def add(a: int, *, b: int) -> int:
        assert codes(tape) == [BEGIN]
        return a + b

    wrapped = kind.around(tape, add, BEGIN, END, RAISED)

    assert wrapped(1, b=2) == 3
    assert codes(tape) == [END]


def test_around_tells_what_was_returned_before_the_end(kind: Kind) -> None:
    """Whoever folds the end finds what was told."""
    tape = kind.new()
    told: list[tuple[str, list[int]]] = []
    wrapped = kind.around(
        tape, str.upper, BEGIN, END, RAISED, tells=lambda x: told.append((x, codes(tape)))
    )

    assert wrapped("a") == "A"
    assert told == [("A", [BEGIN])]
    assert codes(tape) == [END]


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ([torch.ones(4, 2), None], [4]),
        ((torch.ones(3),), [3]),
        ([torch.tensor(1.0)], []),
        (["text"], []),
        ([numpy.ones(2)], []),
        ([], []),
        (torch.ones(4, 2), []),
        ({"input_ids": torch.ones(4, 2)}, []),
    ],
)
def test_rows_of_a_batch_are_told_apart(kind: Kind, batch: Any, rows: list[int]) -> None:
    """A list of tensors needs no closer look; everything else gets one."""
    told: list[int] = []
    looked: list[object] = []
    wrapped = kind.around(
        kind.new(), lambda: batch, BEGIN, END, RAISED, tells=looked.append, rows=told.append
    )

    assert wrapped() is batch
    assert told == rows
    assert len(looked) == 1 - len(rows)


def test_around_passes_the_users_exception(kind: Kind) -> None:
    """The very same one, and another event tells."""
    tape = kind.new()
    tape.follower = lambda _: None  # It runs while the exception passes.
    told: list[object] = []
    error = StopIteration("theirs")

    def raises() -> None:
        raise error

    wrapped = kind.around(tape, raises, BEGIN, END, RAISED, tells=told.append)
    with pytest.raises(StopIteration) as caught:
        wrapped()

    assert caught.value is error
    assert codes(tape) == [BEGIN, RAISED]
    assert told == []


def test_user_may_interrupt_what_is_told(kind: Kind) -> None:
    """A KeyboardInterrupt is the user's, wherever it arrives."""
    tape = kind.new()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    wrapped = kind.around(tape, str.upper, BEGIN, END, RAISED, tells=interrupted)
    with pytest.raises(KeyboardInterrupt):
        wrapped("a")

    assert codes(tape) == [BEGIN, RAISED]


@pytest.mark.parametrize(("answer", "begin"), [(True, BEGIN), (False, OTHERWISE)])
def test_around_asks_which_event_begins(kind: Kind, answer: bool, begin: int) -> None:
    """A fetch with gradients off is another event."""
    tape = kind.new()
    kind.around(tape, int, BEGIN, END, RAISED, lambda: answer, OTHERWISE)()

    assert codes(tape) == [begin, END]


def test_around_is_nothing_on_other_threads(kind: Kind) -> None:
    """The function runs; nothing is noted or told."""
    tape = kind.new()
    told: list[object] = []
    wrapped = kind.around(tape, told.append, BEGIN, END, RAISED, tells=told.append)
    thread = threading.Thread(target=wrapped, args=("theirs",))
    thread.start()
    thread.join()

    assert told == ["theirs"]
    assert codes(tape) == []


def test_around_can_be_replaced_in_place(kind: Kind) -> None:
    """Whoever holds the wrapper sees it change, and change back."""
    tape = kind.new()
    wrapped = kind.around(tape, int, BEGIN, END, RAISED)
    wrapped.instead = lambda *args, **kwargs: (args, kwargs)
    assert wrapped(1, a=2) == ((1,), {"a": 2})
    assert codes(tape) == []
    wrapped.instead = None
    assert wrapped("7") == 7
    assert codes(tape) == [BEGIN, END]


def test_around_binds_like_a_function(kind: Kind) -> None:
    """On a class it is a method, `for` loops find it, and it carries attributes."""
    tape = kind.new()

    class Numbers:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Iterator[int]:
            return self  # type: ignore[return-value]  # __next__ is set below

    def original(self: Numbers) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left

    wrapped = kind.around(tape, original, BEGIN, END, RAISED)
    wrapped.__wrapped__ = original
    Numbers.__next__ = wrapped  # type: ignore[attr-defined]

    assert list(Numbers()) == [2, 1, 0]
    assert codes(tape) == [BEGIN, END] * 3 + [BEGIN, RAISED]
    assert Numbers().__next__() == 2  # type: ignore[attr-defined]
    assert wrapped.__wrapped__ is original


def test_hook_of_an_optimizer_notes_and_changes_nothing(kind: Kind) -> None:
    """Its steps mostly have no arguments besides the optimizer."""
    tape = kind.new()
    asked: list[object] = []
    begins = kind.hook(tape, BEGIN, lambda *arguments: asked.append(arguments))

    assert begins("optimizer", ("optimizer",), {}) is None
    assert kind.hook(tape, END)("optimizer", ("optimizer", "closure"), {}) is None
    assert codes(tape) == [BEGIN, END]
    assert not asked


@pytest.mark.parametrize(
    ("args", "kwargs"), [(("optimizer", "closure"), {}), (("optimizer",), {"closure": 1})]
)
def test_hook_of_an_optimizer_replaces_arguments(
    kind: Kind, args: tuple[str, ...], kwargs: dict[str, int]
) -> None:
    """A closure is timed, whichever way it is passed."""
    tape = kind.new()
    begins = kind.hook(tape, BEGIN, lambda *arguments: (*arguments, "timed"))

    assert begins("optimizer", args, kwargs) == (args, kwargs, "timed")
    assert codes(tape) == [BEGIN]


def test_hook_is_nothing_on_other_threads(kind: Kind) -> None:
    """A thread that trains another model keeps its closure as it is."""
    tape = kind.new()
    tape.owner = NOBODY
    begins = kind.hook(tape, BEGIN, lambda *_: "timed")

    assert begins("optimizer", ("optimizer", "closure"), {}) is None
    assert codes(tape) == []


def test_cycles_are_collected(kind: Kind) -> None:
    """A probe that stopped leaves nothing behind, though its parts hold each other."""

    class Owner:
        def __init__(self) -> None:
            self.tape = kind.new()
            self.tape.follower = self.hear
            self.around = kind.around(self.tape, int, BEGIN, END, RAISED, tells=self.hear)
            self.around.instead = self.hear
            self.hook = kind.hook(self.tape, BEGIN, self.hear)

        def hear(self, _: object) -> None:
            return None

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()

    assert gone() is None


def test_python_counts_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tape in Python counts a failure like every part of the probe."""
    monkeypatch.setattr(failures, "count", failures.count)
    before = failures.count
    PythonTape(broken_time).note(BEGIN)

    assert failures.count == before + 1

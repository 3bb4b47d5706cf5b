"""Tests of the tape, in Python and in C: both keep the same promises."""

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import BATCHES_SHIFT, USED, packed, unpacked
from rank_probe.measure.tape import (
    LONG,
    NOBODY,
    PythonTape,
    Tape,
    around,
    fetching,
    new_tape,
)
from rank_probe.measure.work_units import WorkUnits
from tests.rank_probe.fake_time import FakeTime, elsewhere

BEGIN, END, RAISED = 16, 32, 48


Kind = Callable[..., Tape]


@pytest.fixture(params=["python", "c"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One of the two ways to make a tape; the second only where a compiler built it."""
    if request.param == "python":
        return PythonTape
    if new_tape is PythonTape:
        pytest.skip("the extension module is not built: there is no C compiler")
    return new_tape


@pytest.fixture
def tape(kind: Kind) -> Tape:
    return kind()


def codes(tape: Tape) -> list[int]:
    return list(unpacked(tape.take())[::2])


def test_events_are_taken_once_in_order_with_their_times(kind: Kind) -> None:
    """What is taken is gone, and times are those of the clock: perf_counter's by default."""
    now = FakeTime()
    tape = kind(now)
    tape.note(BEGIN)
    now.pass_(5)
    tape.note(END)
    assert tape.take() == packed([BEGIN, 1_000, END, 1_005])
    assert tape.take() == b""

    tape, before = kind(), time.perf_counter_ns()
    tape.note(BEGIN)
    assert before <= unpacked(tape.take())[1] <= time.perf_counter_ns()


def test_other_threads_note_nothing_but_may_append(tape: Tape) -> None:
    """A checkpointing thread's stages are not the training thread's; an engine's callback is."""
    told: list[bool] = []
    elsewhere(lambda: told.append(tape.note(BEGIN)), lambda: tape.append(END))

    assert (told, tape.note(END)) == ([False], True)
    assert codes(tape) == [END, END]


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
    for code in (BEGIN, END):
        tape.note(code)

    assert heard == [(BEGIN, [BEGIN]), (END, [END])]


def test_long_tape_asks_to_be_taken(tape: Tape) -> None:
    """A very fast loop does not grow while nobody reads."""
    taken: list[int] = []
    tape.on_long = lambda: taken.append(len(codes(tape)))
    for _ in range(LONG + 2):
        tape.note(BEGIN)

    assert taken == [LONG + 1]


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
        around(kind(broken_time).note, theirs, BEGIN, END)()


def fetch_one(tape: Tape, tell: Callable[[Any], object] = str, **more: Any) -> Any:
    """Fetch a batch in the way of a hook; return it."""
    return fetching(tape, next, tell, **more)(iter(["batch"]))


def test_fetch_is_noted_and_its_batch_is_told(tape: Tape) -> None:
    """Whoever folds the end finds what was told."""
    told: list[tuple[str, list[int]]] = []

    assert fetch_one(tape, lambda batch: told.append((batch, codes(tape)))) == "batch"
    assert told == [("batch", [events.FETCH])]
    assert codes(tape) == [events.FETCHED]


def test_fetch_passes_the_users_exception(tape: Tape) -> None:
    """The very same one, and another event tells."""
    tape.follower = lambda _: None  # It runs while the exception passes.
    told: list[object] = []
    error = StopIteration("theirs")

    def raises(_: object) -> None:
        raise error

    with pytest.raises(StopIteration) as caught:
        fetching(tape, raises, told.append)(None)

    assert caught.value is error
    assert codes(tape) == [events.FETCH, events.EXHAUSTED]
    assert told == []


@pytest.mark.parametrize("where", ["clock", "follower", "tape is long", "told", "gradients"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_part_of_ours_is_the_users(
    tape: Tape, kind: Kind, where: str, raised: type[BaseException]
) -> None:
    """A handler of SIGTERM that raises there ends the training, and its last save happens."""

    def handler(*_: object) -> Any:
        raise raised

    if where == "clock":
        tape = kind(handler)
    elif where == "follower":
        tape.follower = handler
    elif where == "tape is long":
        for _ in range(LONG):
            tape.note(BEGIN)
        tape.on_long = handler
    more = {"tell": handler} if where == "told" else {}
    more |= {"gradients": handler} if where == "gradients" else {}
    with pytest.raises(raised):
        fetch_one(tape, **more)

    ended = [] if where == "clock" else [events.EXHAUSTED]
    assert codes(tape)[-1:] == ended


def test_interrupt_keeps_the_exception_that_it_met(tape: Tape) -> None:
    """It arrives while the user's own passes: Python shows both."""

    def follow(code: int) -> None:
        if code == END:
            raise KeyboardInterrupt

    def theirs() -> None:
        raise KeyError("theirs")

    tape.follower = follow
    with pytest.raises(KeyboardInterrupt) as caught:
        around(tape.note, theirs, BEGIN, END)()

    assert isinstance(caught.value.__context__, KeyError)
    assert codes(tape) == [BEGIN, END]


def test_fetch_with_gradients_off_is_another_event(tape: Tape) -> None:
    """It belongs to an evaluation."""
    fetch_one(tape, gradients=lambda: False)

    assert codes(tape) == [events.FETCH_UNGRADED, events.FETCHED]


def test_fetch_is_nothing_on_other_threads(tape: Tape) -> None:
    """The function runs; nothing is noted or told."""
    told: list[object] = []
    batches = iter([1, 2])
    elsewhere(lambda: fetching(tape, next, told.append)(batches))

    assert next(batches) == 2
    assert told == []
    assert codes(tape) == []


def test_around_notes_before_and_after(tape: Tape) -> None:
    """Also if the function raises."""

    def add(a: int, *, b: int) -> float:
        assert codes(tape) == [BEGIN]
        return a / b

    wrapped = around(tape.note, add, BEGIN, END)
    assert wrapped(1, b=2) == 0.5
    assert codes(tape) == [END]
    with pytest.raises(ZeroDivisionError):
        wrapped(1, b=0)
    assert codes(tape) == [END]


def test_tape_notes_around_a_call(tape: Tape) -> None:
    """With another event where it raises, and the very same exception."""
    error = KeyError("theirs")

    def theirs(*args: int, fails: bool = False) -> tuple[int, ...]:
        assert codes(tape) == [BEGIN]
        if fails:
            raise error
        return args

    call = tape.around(theirs, BEGIN, END, RAISED)

    assert call(1, 2) == (1, 2)
    assert codes(tape) == [END]
    with pytest.raises(KeyError) as caught:
        call(fails=True)
    assert caught.value is error
    assert codes(tape) == [RAISED]


@pytest.mark.parametrize("at", [BEGIN, END, RAISED])
def test_interrupt_of_what_notes_around_a_call_is_the_users(tape: Tape, at: int) -> None:
    """It arrives while an event is noted: it passes, with the exception that it met."""
    called: list[bool] = []

    def follow(code: int) -> None:
        if code == at:
            raise KeyboardInterrupt

    def theirs() -> None:
        called.append(True)
        if at == RAISED:
            raise KeyError("theirs")

    tape.follower = follow
    with pytest.raises(KeyboardInterrupt) as caught:
        tape.around(theirs, BEGIN, END, RAISED)()

    assert called == [True] * (at != BEGIN)
    assert isinstance(caught.value.__context__, KeyError) == (at == RAISED)
    assert codes(tape) == ([BEGIN, RAISED] if at == BEGIN else [BEGIN, at])


def test_optimizers_hook_passes_on_more_arguments(tape: Tape) -> None:
    """The optimizer is always among them; on another thread nothing is noted or passed on."""
    more: list[object] = []

    def tell(*arguments: object) -> str:
        more.append(arguments)
        return "changed"

    call, ends = tape.noting(BEGIN, tell), tape.noting(END, None)
    optimizer = object()
    assert [call(optimizer, (optimizer,), {}), ends(optimizer, (optimizer,), {"a": 1})] == [
        None
    ] * 2
    assert more == []
    assert call(optimizer, (optimizer, 1), {}) == "changed"
    assert call(optimizer, (optimizer,), {"closure": 2}) == "changed"
    assert more == [((optimizer, 1), {}), ((optimizer,), {"closure": 2})]
    assert codes(tape) == [BEGIN, END, BEGIN, BEGIN]

    elsewhere(lambda: call(optimizer, (optimizer, 1), {}))
    assert (codes(tape), len(more)) == ([], 2)


class Shaped:
    """What has the shape of a tensor, as far as it shows."""

    def __init__(self, shape: object) -> None:
        self._shape = shape

    @property
    def shape(self) -> object:
        if self._shape is None:
            raise RuntimeError("a nested tensor has none")
        return self._shape


@pytest.mark.parametrize("kind_of_batch", [list, tuple])
def test_rows_of_a_batch_are_counted_or_its_work_is_measured(
    tape: Tape, kind_of_batch: type[list[Shaped]]
) -> None:
    """The same work, whoever looks at the shape; what has none is no error."""
    shapes = [(3, 2), torch.Size([4]), (), None, ("x",), (0,)]
    batches = [kind_of_batch([Shaped(shape)]) for shape in shapes]
    work = WorkUnits()
    fetch = fetching(tape, next, work.measure, count=work.count)
    fetched = iter([*batches, [], "text"])
    for _ in range(len(batches) + 2):
        fetch(fetched)
    work.settle([USED | 8 << BATCHES_SHIFT])

    assert work.totals() == (7, None, None)


def test_nothing_is_lost_while_the_tape_is_taken() -> None:
    """Another thread may note at any moment in Python; in C it waits for the interpreter's lock."""
    tape = PythonTape()

    class Events(list[int]):
        def __getitem__(self, which: Any) -> Any:
            found = super().__getitem__(which)
            tape.append(END)
            return found

    tape._events = Events()
    tape.append(BEGIN)

    assert codes(tape) == [BEGIN]
    assert codes(tape) == [END]


def test_cycles_are_collected(kind: Kind) -> None:
    """A probe that stopped leaves nothing behind, though its parts hold each other."""

    class Owner:
        def __init__(self) -> None:
            self.tape = kind()
            self.tape.follower = self.hear
            self.fetch = fetching(self.tape, self.hear, self.hear)

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

"""The tape, in Python and in C with the same promises, and the work that its batches hold."""

import gc
import time
import weakref
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import events, work_units
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED, packed, unpacked
from rank_probe.measure.tape import LONG, NOBODY, PythonTape, Tape, around, fetching, new_tape
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits
from tests.rank_probe.fakes import FakeTime, elsewhere

BEGINS, ENDS, RAISED = 16, 32, 48


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
    tape.note(BEGINS)
    now.pass_(5)
    tape.note(ENDS)
    assert tape.take() == packed([BEGINS, 1_000, ENDS, 1_005])
    assert tape.take() == b""

    tape, before = kind(), time.perf_counter_ns()
    tape.note(BEGINS)
    assert before <= unpacked(tape.take())[1] <= time.perf_counter_ns()


def test_only_the_owner_notes_but_any_thread_may_append(tape: Tape) -> None:
    """A checkpointing thread's stages are not the training thread's; an engine's callback is.

    A forked child inherits the hooks but is not the rank.
    """
    told: list[bool] = []
    elsewhere(lambda: told.append(tape.note(BEGINS)), lambda: tape.append(ENDS))
    assert (told, tape.note(ENDS)) == ([False], True)

    owner, tape.owner = tape.owner, NOBODY
    tape.note(BEGINS)
    tape.owner = owner
    assert codes(tape) == [ENDS, ENDS]


def test_follower_hears_each_event_and_may_leave(tape: Tape) -> None:
    """It runs after the event was appended, so it can take it."""
    heard: list[tuple[int, list[int]]] = []

    def follow(code: int) -> None:
        heard.append((code, codes(tape)))
        if code == ENDS:
            tape.follower = None

    tape.follower = follow
    for code in (BEGINS, ENDS):
        tape.note(code)

    assert heard == [(BEGINS, [BEGINS]), (ENDS, [ENDS])]


def test_long_tape_asks_to_be_taken(tape: Tape) -> None:
    """A very fast loop does not grow while nobody reads: the timeline adds it up then."""
    taken: list[int] = []
    tape.on_long = lambda: taken.append(len(codes(tape)))
    for _ in range(LONG + 2):
        tape.note(BEGINS)
    assert taken == [LONG + 1]

    timeline = Timeline(automatic=True)
    for _ in range(LONG + 1_000):
        timeline.tape.note(events.STEP)
    assert len(timeline.tape.take()) < 2 * LONG


def test_stage_of_now_has_its_time_so_far() -> None:
    """The unfinished step counts in what was spent: here the clock goes on by 1 at each look."""
    timeline = Timeline(automatic=True, now=iter(range(9)).__next__)
    assert all(map(timeline.tape.note, (events.FETCH, events.FETCHED)))
    assert sum(timeline.spent()) == 2


def broken_time() -> int:
    raise RuntimeError("ours")


def test_broken_parts_of_ours_never_reach_the_caller(kind: Kind, tape: Tape) -> None:
    """A broken follower or clock of ours never reaches the caller; the user's exception does."""
    tape.follower = "not a function"  # type: ignore[assignment]
    tape.note(BEGINS)
    tape.follower = lambda code: 1 / 0
    tape.note(ENDS)
    assert codes(tape) == [BEGINS, ENDS]

    def theirs() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        around(kind(broken_time).note, theirs, BEGINS, ENDS)()
    assert kind is not PythonTape or failures.count > 0  # In C nobody counts.


def fetch_one(tape: Tape, tell: Callable[[Any], object] = str, **more: Any) -> Any:
    """Fetch a batch in the way of a hook; return it."""
    return fetching(tape, next, tell, **more)(iter(["batch"]))


def test_fetch_is_noted_and_its_batch_is_told(tape: Tape) -> None:
    """Whoever folds the end finds what was told; without gradients it is an evaluation's event.

    On another thread the function runs, and nothing is noted or told.
    """
    told: list[tuple[str, list[int]]] = []

    def tell(batch: str) -> None:
        told.append((batch, codes(tape)))

    assert fetch_one(tape, tell) == "batch"
    assert told == [("batch", [events.FETCH])]
    assert codes(tape) == [events.FETCHED]
    fetch_one(tape, gradients=lambda: False)
    assert codes(tape) == [events.FETCH_UNGRADED, events.FETCHED]

    batches = iter([1, 2])
    elsewhere(lambda: fetching(tape, next, tell)(batches))
    assert next(batches) == 2
    assert (len(told), codes(tape)) == (1, [])


def test_fetch_passes_the_users_exception(tape: Tape) -> None:
    """The same exception object passes, and the fetch ends with an event of its own."""
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
def test_interrupt_in_a_part_of_ours_is_the_users(tape: Tape, kind: Kind, where: str) -> None:
    """A handler of SIGTERM that raises there ends the training, and its last save happens."""

    def handler(*_: object) -> Any:
        raise SystemExit

    if where == "clock":
        tape = kind(handler)
    elif where == "follower":
        tape.follower = handler
    elif where == "tape is long":
        for _ in range(LONG):
            tape.note(BEGINS)
        tape.on_long = handler
    more = {"tell": handler} if where == "told" else {}
    more |= {"gradients": handler} if where == "gradients" else {}
    with pytest.raises(SystemExit):
        fetch_one(tape, **more)

    ended = [] if where == "clock" else [events.EXHAUSTED]
    assert codes(tape)[-1:] == ended


@pytest.mark.parametrize("raised_as", [ENDS, RAISED])
def test_call_is_noted_before_and_after(tape: Tape, raised_as: int) -> None:
    """Arguments, result and the very same exception pass; a tape may tell that it raised."""
    error = KeyError("theirs")

    def theirs(*args: int, fails: bool = False) -> tuple[int, ...]:
        assert codes(tape) == [BEGINS]
        if fails:
            raise error
        return args

    if raised_as == RAISED:
        call = tape.around(theirs, BEGINS, ENDS, RAISED)
    else:
        call = around(tape.note, theirs, BEGINS, ENDS)

    assert call(1, 2) == (1, 2)
    assert codes(tape) == [ENDS]
    with pytest.raises(KeyError) as caught:
        call(fails=True)
    assert caught.value is error
    assert codes(tape) == [raised_as]


@pytest.mark.parametrize("at", [BEGINS, ENDS, RAISED])
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
        tape.around(theirs, BEGINS, ENDS, RAISED)()

    assert called == [True] * (at != BEGINS)
    assert isinstance(caught.value.__context__, KeyError) == (at == RAISED)
    assert codes(tape) == ([BEGINS, RAISED] if at == BEGINS else [BEGINS, at])


def test_optimizers_hook_passes_on_more_arguments(tape: Tape) -> None:
    """The optimizer is always among them; on another thread nothing is noted or passed on."""
    more: list[object] = []

    def tell(*arguments: object) -> str:
        more.append(arguments)
        return "changed"

    call, ends = tape.noting(BEGINS, tell), tape.noting(ENDS, None)
    optimizer = object()
    assert [call(optimizer, (optimizer,), {}), ends(optimizer, (optimizer,), {"a": 1})] == [
        None
    ] * 2
    assert more == []
    assert call(optimizer, (optimizer, 1), {}) == "changed"
    assert call(optimizer, (optimizer,), {"closure": 2}) == "changed"
    assert more == [((optimizer, 1), {}), ((optimizer,), {"closure": 2})]
    assert codes(tape) == [BEGINS, ENDS, BEGINS, BEGINS]

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


# ---- Work units: samples, tokens and padding -----------------------------------------------------

ROWS = torch.ones(4, 3)
WORDS = torch.ones(4, 5, dtype=torch.int64)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def use(work: WorkUnits, *batches: Any) -> None:
    """Train with *batches*: they arrive, and then the events are folded."""
    for batch in batches:
        work.measure(batch)
    work.settle([USED | len(batches) << BATCHES_SHIFT])


class Batch(UserDict[str, Any]):
    """As transformers' BatchEncoding: a mapping that is no dict."""


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (ROWS, (4, None, None)),
        ((ROWS, torch.ones(4)), (4, None, None)),
        (np.ones((4, 2)), (4, None, None)),
        ({"pixels": ROWS}, (4, None, None)),
        ({"note": "x", "pixels": ROWS}, (4, None, None)),
        ({"input_ids": WORDS}, (4, 20, None)),
        ({"input_ids": np.ones((4, 5))}, (4, 20, None)),
        ({"labels": ROWS[:2], "input_ids": WORDS, "attention_mask": MASK}, (4, 20, 6)),
        (Batch({"input_ids": WORDS, "attention_mask": MASK.bool()}), (4, 20, 6)),
        ({"input_ids": WORDS, "attention_mask": MASK.to("meta")}, (4, 20, None)),
        ({"input_ids": WORDS, "attention_mask": torch.ones(4, 1, 5, 5)}, (4, 20, None)),
        (torch.tensor(1.0), (None, None, None)),
        ((), (None, None, None)),
        (None, (None, None, None)),
        (["a", "b"], (None, None, None)),
        (((ROWS, ROWS), ("cat", "dog")), (None, None, None)),
    ],
)
def test_batches_are_understood(batch: Any, expected: tuple[int | None, ...]) -> None:
    """Rows, tokens and padding of each usual kind; what a batch does not say stays None."""
    errors = failures.count
    work = WorkUnits()
    use(work, batch)

    assert work.totals() == expected
    assert failures.count == errors


@pytest.mark.parametrize(
    ("limit", "kept"), [("MASKS_KEPT", 3), ("ELEMENTS_KEPT", 3 * MASK.numel())]
)
def test_masks_do_not_pile_up(monkeypatch: pytest.MonkeyPatch, limit: str, kept: int) -> None:
    """Without a pusher the training thread counts the zeros itself, before memory matters."""
    monkeypatch.setattr(work_units, limit, kept)
    work = WorkUnits()
    for waiting in (1, 2, 3, 0, 1, 2, 3, 0, 1):  # Those that were counted make room.
        work.measure({"input_ids": WORDS, "attention_mask": MASK})
        assert len(work._masks._waiting) == waiting
    work.settle([USED | 9 << BATCHES_SHIFT])

    assert work.totals() == (36, 180, 54)


def test_batches_that_nobody_trained_with_do_not_count() -> None:
    """Neither those of an evaluation, nor what a loader inside a data set delivered."""
    work = WorkUnits()
    for batch in (ROWS, {"input_ids": WORDS, "attention_mask": MASK}, ROWS[:3]):
        work.measure(batch)
    work.settle([OTHER_BATCH | 1 << BATCHES_SHIFT])  # The second one, while the first still waits.
    work.settle([USED | 2 << BATCHES_SHIFT])
    work.measure(ROWS)
    work.settle([UNUSED | 1 << BATCHES_SHIFT])

    assert work.totals() == (4 + 3, None, None)
    assert not work._measured


def test_caller_may_add_from_any_thread() -> None:
    """Into the same counters as batches; one that nobody fed stays None. Only whole ones count."""
    work = WorkUnits()
    elsewhere(lambda: work.add(samples=3))
    assert work.totals() == (3, None, None)
    use(work, {"input_ids": WORDS, "attention_mask": MASK})
    work.add(samples=1, tokens=10, padding_tokens=2)

    assert work.totals() == (3 + 4 + 1, 20 + 10, 6 + 2)
    for odd in (np.int64(3), torch.tensor(4), 1.5, torch.tensor(5, device="meta")):
        work.add(tokens=odd)  # type: ignore[arg-type]
    assert (work.totals()[1], type(work.totals()[1]), failures.count) == (37, int, 2)


def test_a_callable_says_what_a_batch_holds() -> None:
    """*measure* takes the place of looking at the batch; one that raises is counted only."""
    errors = failures.count
    work = WorkUnits(lambda batch: (len(batch), None, batch.count("-")))
    use(work, "ab--", ROWS)

    assert work.totals() == (4, None, 2)
    assert failures.count == errors + 1

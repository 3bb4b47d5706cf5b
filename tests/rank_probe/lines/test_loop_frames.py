"""The training loop is found on a real stack, and known to fetch its next item or not."""

import dis
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from types import CodeType

import pytest

from rank_probe.lines.loop_frames import Layout, Spot, TrainingLoop, layout, loop_spot, stack_of

Look = Callable[[], None]

# Enough for the interpreter to specialise what a loop runs: its instructions are others then.
ITEMS = 60


class Looks:
    """Looks at the caller's stack as the sampler does; *codes* those that called backward."""

    def __init__(self, knows_backward: bool = False) -> None:
        self.codes: tuple[CodeType, ...] = ()
        self._knows_backward = knows_backward
        self._loop = TrainingLoop(lambda: self.codes, lambda file: file == __file__)
        self.fetching: list[bool] = []

    def __call__(self) -> None:
        # Without this frame: on a real stack the innermost is the loop's own work.
        self.fetching.append(self._loop.is_fetching(stack_of(sys._getframe(1))))

    def backward(self) -> None:
        """Stand in for the loss's: the caller is seen calling backward."""
        if self._knows_backward:
            # A framework's frame may be between.
            self.codes = (json.dumps.__code__, sys._getframe(1).f_code)


class Stream:
    """An iterator of the user's own that looks while it is asked for its next item."""

    def __init__(self, look: Look, items: int = ITEMS) -> None:
        self._look, self._left = look, items

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        self._left -= 1
        self._look()
        return self._left


def generator(look: Look) -> Iterator[int]:
    for item in range(ITEMS):
        look()
        yield item


def work(look: Look) -> None:
    """Stand in for a forward that has loops of its own."""
    for _ in range(2):
        look()
    _ = [look() for _ in range(2)]  # type: ignore[func-returns-value]


def over_a_class(looks: Looks) -> None:
    for _ in Stream(looks):
        looks.backward()


def over_a_generator(looks: Looks) -> None:
    for _ in generator(looks):
        looks.backward()


def over_zip(looks: Looks) -> None:
    for _, _ in zip(range(2 * ITEMS), Stream(looks), strict=False):
        looks.backward()


def over_enumerate(looks: Looks) -> None:
    for _, _ in enumerate(generator(looks)):
        looks.backward()


def over_islice(looks: Looks) -> None:
    for _ in islice(Stream(looks, 2 * ITEMS), ITEMS):
        looks.backward()


def by_next(looks: Looks) -> None:
    stream = Stream(looks)
    for _ in range(ITEMS):
        _ = next(stream)
        looks.backward()


def by_next_in_an_expression(looks: Looks) -> None:
    stream = Stream(looks)
    for _ in range(ITEMS):
        _ = str(next(stream).bit_length() + int(str(1)))
        looks.backward()


def by_dunder_next(looks: Looks) -> None:
    streams = [Stream(looks)]
    while streams[0]._left:
        _ = streams[0].__next__()
        looks.backward()


def with_a_default(looks: Looks) -> None:
    stream = Stream(looks)
    while next(stream, None) is not None:
        looks.backward()


FETCHES = (
    over_a_class,
    over_a_generator,
    over_zip,
    over_enumerate,
    over_islice,
    by_next,
    by_next_in_an_expression,
    by_dunder_next,
)


@pytest.mark.parametrize("knows_backward", [False, True])
@pytest.mark.parametrize("loop", FETCHES)
def test_fetching_the_next_item_is_seen(
    loop: Callable[[Looks], None], knows_backward: bool
) -> None:
    """However a loop reads its own iterator, a look from within that iterator says so."""
    looks = Looks(knows_backward)
    loop(looks)

    assert looks.fetching == [True] * ITEMS


def test_condition_of_a_while_loop_fetches() -> None:
    """Its first run comes before the loop, where nothing shows yet that one follows."""
    looks = Looks()
    with_a_default(looks)

    assert looks.fetching == [False] + [True] * (ITEMS - 1)


def in_the_body(looks: Looks) -> None:
    for _ in range(ITEMS):
        work(looks)
        looks.backward()


def in_a_comprehension_of_the_body(looks: Looks) -> None:
    for _ in range(ITEMS):
        _ = [work(looks) for _ in range(2)]  # type: ignore[func-returns-value]
        looks.backward()


def in_what_next_is_given(looks: Looks) -> None:
    for _ in range(ITEMS):
        _ = next(iter([work(looks)]))  # type: ignore[func-returns-value]
        looks.backward()


def on_what_next_returned(looks: Looks) -> None:
    looking = iter([looks] * ITEMS)
    for _ in range(ITEMS):
        next(looking)()
        looks.backward()


def in_an_iterator_of_the_body(looks: Looks) -> None:
    for _ in range(3):
        over_a_class(looks)


def test_iterator_that_the_work_reads_is_no_fetching() -> None:
    """While backward's caller is unknown, only the outermost loop can be the training's."""
    looks = Looks()
    in_an_iterator_of_the_body(looks)

    assert not any(looks.fetching)


@pytest.mark.parametrize("knows_backward", [False, True])
@pytest.mark.parametrize(
    "loop",
    [
        in_the_body,
        in_a_comprehension_of_the_body,
        in_what_next_is_given,
        on_what_next_returned,
    ],
)
def test_other_work_is_no_fetching(loop: Callable[[Looks], None], knows_backward: bool) -> None:
    """Loops and comprehensions of the work itself are not the training loop's."""
    looks = Looks(knows_backward)
    loop(looks)

    assert looks.fetching
    assert not any(looks.fetching)


def step_of_its_own(looks: Looks) -> None:
    work(looks)
    looks.backward()


def an_epoch(looks: Looks) -> None:
    for _ in Stream(looks, 3):
        step_of_its_own(looks)


def epochs(looks: Looks) -> None:
    for _ in range(2):
        an_epoch(looks)


def test_loop_around_a_function_of_one_step_is_learnt() -> None:
    """Epochs, loop and step are three functions: the middle one fetches, the inner one works.

    Until a stack shows who calls the step, the outermost loop is taken for the training's.
    """
    looks = Looks(knows_backward=True)
    epochs(looks)
    # Each item: one look while it is fetched, four while it is worked on.
    items = [looks.fetching[first : first + 5] for first in range(0, 30, 5)]

    assert items[:2] == [[False] * 5] * 2
    assert items[2:] == [[True] + [False] * 4] * 4


def recursion(depth: int, look: Look) -> None:
    if depth:
        recursion(depth - 1, look)
    else:
        look()


def test_stack_that_is_too_deep_is_no_loop() -> None:
    """A recursion that hides the loop gives no answer, and costs no more than the limit."""
    looks = Looks()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5_000)
    try:
        for _ in Stream(lambda: recursion(1_100, looks), 1):
            pass
    finally:
        sys.setrecursionlimit(limit)

    assert looks.fetching == [False]


def test_nobody_elses_frame_is_the_loop() -> None:
    """Where all frames are a framework's, nothing is known."""
    loop = TrainingLoop(tuple, lambda file: False)
    seen: list[bool] = []
    for _ in Stream(lambda: seen.append(loop.is_fetching(stack_of(sys._getframe(0)))), 3):
        pass

    assert seen == [False] * 3
    assert loop_spot([], (), layout) is None
    assert stack_of(None) == []


def test_loop_is_the_innermost_that_carries_backward() -> None:
    """Of the frames known to carry it, the others only call that one."""
    inner, outer = Spot(work.__code__, 0), Spot(epochs.__code__, 0)
    both = {id(inner.code), id(outer.code)}
    nothing = Layout(frozenset(), ())

    assert loop_spot([inner, outer], both, lambda _: nothing) is inner
    assert loop_spot([inner, outer], {id(outer.code)}, lambda _: nothing) is outer


def test_caches_of_an_instruction_belong_to_it() -> None:
    """Some versions of Python leave a frame at the caches behind its instruction."""
    instructions = list(dis.get_instructions(by_next))
    names = [each.argval for each in instructions]
    rest = instructions[names.index("next") :]
    call, after = next(two for two in pairwise(rest) if two[0].opname == "CALL")
    offsets = set(range(call.offset, after.offset, 2))

    assert len(offsets) > 1
    assert offsets <= layout(by_next.__code__).advances

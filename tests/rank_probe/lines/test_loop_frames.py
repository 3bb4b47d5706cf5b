"""The training loop is found on a real stack, and known to fetch its next item or not."""

import dis
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice, pairwise  # noqa: F401 - for the loops in strings
from textwrap import indent
from types import CodeType, FunctionType
from typing import Any

import pytest

from rank_probe.lines.loop_frames import TrainingLoop, layout, loop_spot, stack_of

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


def function(body: str) -> FunctionType:
    """Return a function of *looks* with this *body*, as if it were written in this file."""
    source = "def loop(looks):\n" + indent(body, "    ")
    names: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), dict(globals()), names)
    made: FunctionType = names["loop"]
    return made


OVER_A_CLASS = "for _ in Stream(looks):\n    looks.backward()"
BY_NEXT = (
    "stream = Stream(looks)\nfor _ in range(ITEMS):\n    _ = next(stream)\n    looks.backward()"
)
FETCHES = [
    OVER_A_CLASS,
    "for _ in generator(looks):\n    looks.backward()",
    "for _, _ in zip(range(2 * ITEMS), Stream(looks)):\n    looks.backward()",
    "for _, _ in enumerate(generator(looks)):\n    looks.backward()",
    "for _ in islice(Stream(looks, 2 * ITEMS), ITEMS):\n    looks.backward()",
    BY_NEXT,
    BY_NEXT.replace("next(stream)", "str(next(stream).bit_length() + int(str(1)))"),
    "it = [Stream(looks)]\nwhile it[0]._left:\n    _ = it[0].__next__()\n    looks.backward()",
]


@pytest.mark.parametrize("knows_backward", [False, True])
@pytest.mark.parametrize("body", FETCHES)
def test_fetching_the_next_item_is_seen(body: str, knows_backward: bool) -> None:
    """However a loop reads its own iterator, a look from within that iterator says so."""
    looks = Looks(knows_backward)
    function(body)(looks)

    assert looks.fetching == [True] * ITEMS


def test_condition_of_a_while_loop_fetches() -> None:
    """Its first run comes before the loop, where nothing shows yet that one follows."""
    looks = Looks()
    stream = "stream = Stream(looks)"
    function(f"{stream}\nwhile next(stream, None) is not None:\n    looks.backward()")(looks)

    assert looks.fetching == [False] + [True] * (ITEMS - 1)


def test_iterator_that_the_work_reads_is_no_fetching() -> None:
    """While backward's caller is unknown, only the outermost loop can be the training's."""
    looks, inner = Looks(), function(OVER_A_CLASS)
    for _ in range(3):
        inner(looks)

    assert not any(looks.fetching)


@pytest.mark.parametrize("knows_backward", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        "for _ in range(ITEMS):\n    work(looks)\n    looks.backward()",
        "for _ in range(ITEMS):\n    _ = [work(looks) for _ in range(2)]\n    looks.backward()",
        "for _ in range(ITEMS):\n    _ = next(iter([work(looks)]))\n    looks.backward()",
        "it = iter([looks] * ITEMS)\nfor _ in range(ITEMS):\n    next(it)()\n    looks.backward()",
    ],
)
def test_other_work_is_no_fetching(body: str, knows_backward: bool) -> None:
    """Loops and comprehensions of the work, and what `next` is given or returns, are not."""
    looks = Looks(knows_backward)
    function(body)(looks)

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


def test_caches_of_an_instruction_belong_to_it() -> None:
    """Some versions of Python leave a frame at the caches behind its instruction."""
    code = function(BY_NEXT).__code__
    instructions = list(dis.get_instructions(code))
    names = [each.argval for each in instructions]
    rest = instructions[names.index("next") :]
    call, after = next(two for two in pairwise(rest) if two[0].opname == "CALL")
    offsets = set(range(call.offset, after.offset, 2))

    assert len(offsets) > 1
    assert offsets <= layout(code).advances

"""Finds the training loop on a stack, and whether it is fetching its next item there."""

import dis
from collections.abc import Callable, Collection, Sequence
from types import CodeType, FrameType
from typing import Final, NamedTuple

# Frames counted from the innermost. Deeper recursion hides the loop.
MOST_FRAMES: Final = 1_000
LAYOUTS_KEPT: Final = 256
NEXT: Final = "next", "__next__"
# Python 3.11 splits a call into two instructions; some functions run in the first.
PRECALL: Final = "PRECALL"
CALLS: Final = PRECALL, "CALL", "CALL_KW", "CALL_FUNCTION_EX"


class Spot(NamedTuple):
    """Where a frame is: its code, and the offset of its current instruction."""

    code: CodeType
    offset: int


class Layout(NamedTuple):
    """Where a code object advances an iterator, and the first and last offset of each loop."""

    advances: frozenset[int]
    loops: tuple[tuple[int, int], ...]


def stack_of(frame: FrameType | None) -> list[Spot]:
    """Return the stack of *frame*, innermost first."""
    stack: list[Spot] = []
    while frame is not None and len(stack) < MOST_FRAMES:
        stack.append(Spot(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return stack


class TrainingLoop:
    """Detects from stacks whether the training loop is advancing an iterator; for one thread.

    *backward* returns the code objects on the stack of the backward call, innermost first; empty
    while unknown. The innermost user function there may cover only one step, so its callers count
    as carrying the loop too; they are learnt from stacks that contain it. *is_users* says whether a
    file is the user's.
    """

    def __init__(
        self, backward: Callable[[], Sequence[CodeType]], is_users: Callable[[str], bool]
    ) -> None:
        self._backward = backward
        self._is_users = is_users
        # Keyed by id: hashing a code object reads all of it. The values keep the ids valid.
        self._carrying: dict[int, CodeType] = {}
        self._layouts: dict[int, tuple[CodeType, Layout]] = {}

    def is_fetching(self, stack: Sequence[Spot]) -> bool:
        """Whether the training loop on *stack*, innermost first, is fetching its next item."""
        users = [spot for spot in stack if self._is_users(spot.code.co_filename)]
        self._learn(users)
        spot = loop_spot(users, self._carrying, self._layout)
        return spot is not None and spot.offset in self._layout(spot.code).advances

    def _learn(self, users: Sequence[Spot]) -> None:
        files = ((code, code.co_filename) for code in self._backward())
        backward = next((code for code, file in files if self._is_users(file)), None)
        if backward is None:
            return
        codes = [spot.code for spot in users]
        here = next((i for i, code in enumerate(codes) if code is backward), None)
        if here is not None:
            self._carrying = {id(code): code for code in codes[here:]}

    def _layout(self, code: CodeType) -> Layout:
        known = self._layouts.get(id(code))
        if known is None:
            if len(self._layouts) >= LAYOUTS_KEPT:  # Some programs keep compiling new code.
                self._layouts.clear()
            known = self._layouts[id(code)] = code, layout(code)
        return known[1]


def loop_spot(
    users: Sequence[Spot], carrying: Collection[int], layout_of: Callable[[CodeType], Layout]
) -> Spot | None:
    """Return the training loop's frame among the *users* frames of a stack, innermost first.

    This is the innermost frame whose code, by id, is in *carrying* (the codes that lead to
    backward). Without such a frame it is the outermost one inside a loop; None if there is none.
    """
    for spot in users:
        if id(spot.code) in carrying:
            return spot
    for spot in reversed(users):
        if any(first <= spot.offset <= last for first, last in layout_of(spot.code).loops):
            return spot
    return None


def layout(code: CodeType) -> Layout:
    """Return where *code* advances iterators and where it loops, from its instructions.

    FOR_ITER and a call of `next` or `__next__` advance an iterator. A comprehension in the same
    code counts too, but takes no time unless what it iterates over is itself an iterator.
    """
    instructions = list(dis.get_instructions(code))
    calls = _calls_of_next(instructions)
    # A frame's offset may point at one of the inline caches that follow an instruction.
    ends = [*(each.offset for each in instructions[1:]), len(code.co_code)]
    advances = {
        offset
        for each, end in zip(instructions, ends, strict=True)
        if each.opname == "FOR_ITER" or each.offset in calls
        for offset in range(each.offset, end, 2)
    }
    loops = tuple(
        (each.argval, each.offset) for each in instructions if "JUMP_BACKWARD" in each.opname
    )
    return Layout(frozenset(advances), loops)


def _calls_of_next(instructions: Sequence[dis.Instruction]) -> set[int]:
    """Return the offsets of the calls of `next` and `__next__`.

    A loaded name is called by the first later call that begins at the same source position:
    arguments begin further right, and a call on the result ends later.
    """
    found = set()
    for index, loaded in enumerate(instructions):
        if loaded.opname.startswith("LOAD_") and loaded.argval in NEXT:
            begin = _begin(loaded)
            rest = instructions[index + 1 :]
            call = next((i for i in rest if i.opname in CALLS and _begin(i) == begin), None)
            if call is not None:
                found.add(call.offset)
            if call is not None and call.opname == PRECALL:
                found.add(instructions[instructions.index(call) + 1].offset)
    return found


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (None, None) if positions is None else (positions.lineno, positions.col_offset)


def called_at(spot: Spot) -> str:
    """Return the name of the function or method that *spot* is calling; empty if it calls none."""
    instructions = list(dis.get_instructions(spot.code))
    at = [each.offset for each in instructions if each.offset <= spot.offset]
    call = instructions[len(at) - 1] if at else None
    if call is None or call.opname not in CALLS:
        return ""
    before = instructions[: len(at) - 1]
    loaded = [each for each in before if each.opname.startswith("LOAD_")]
    same = [each for each in loaded if _begin(each) == _begin(call)]
    return str(same[-1].argval) if same else ""

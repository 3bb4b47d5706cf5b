"""Turns the events of a training loop into the boundaries between its stages.

The walk exists twice: here, and in _fold.c at a third of the cost. Tests keep the two equal.
"""

import functools
from collections import deque
from collections.abc import Callable
from typing import Final

from rank_probe.measure.boundaries import packed, unpacked
from rank_probe.measure.loop_state import LoopState
from rank_probe.measure.transitions import after

try:
    from rank_probe import _fold  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _fold = None

# Different states kept; a loop passes through a dozen.
STATES_KEPT: Final = 4096


class Interpreter:
    """Turns events into boundaries one by one, and caches each transition that it has seen."""

    def __init__(self, state: LoopState) -> None:
        self._nodes: dict[LoopState, _Node] = {}
        self._inserted: deque[int] = deque()
        self._node = self._node_of(state)

    @property
    def state(self) -> LoopState:
        """Return the state after the last event."""
        return self._node.state

    def read(self, events: bytes) -> bytes:
        """Return the boundaries at *events*, both packed."""
        self._node, boundaries = read(self._node, events)
        return boundaries

    def take(self, code: int) -> int | None:
        """Return the mark of the boundary at the event *code*; None if there is none."""
        self._node, mark = self._node[code]
        return mark

    def insert(self, code: int) -> None:
        """Take *code*, an event without a boundary, before the next event; for any thread.

        Another thread may be taking events. Only that thread advances the state: two at once would
        lose an event, and a lock, or a check at each event, would slow down every hook.
        """
        self._inserted.append(code)
        for node in list(self._nodes.values()):
            node.clear()  # Makes the next lookup miss; `_Node.__missing__` then takes *code*.

    def telling(self, tell: Callable[[int], object]) -> Callable[[int], None]:
        """Return a function that takes events and calls *tell* with the mark of each boundary."""
        if _fold is not None:
            return functools.partial(_fold.follow, [self._node, tell])

        def take(code: int) -> None:
            self._node, mark = self._node[code]
            if mark is not None:
                tell(mark)

        return take

    def seen(self) -> set[int]:
        """Return the events seen so far; the oldest are forgotten if the loop varies a lot."""
        return {code for node in list(self._nodes.values()) for code in list(node)}

    def _node_of(self, state: LoopState) -> "_Node":
        if len(self._nodes) > STATES_KEPT:
            for node in self._nodes.values():
                node.clear()  # `insert` could not reach them any more.
            self._nodes.clear()
        found = self._nodes.get(state)
        if found is None:
            found = self._nodes[state] = _Node(state, self._node_of, self._inserted)
        return found


class _Node(dict[int, tuple["_Node", int | None]]):
    """A state, and what it becomes after each event that was seen in it."""

    def __init__(
        self, state: LoopState, node_of: Callable[[LoopState], "_Node"], inserted: deque[int]
    ) -> None:
        super().__init__()
        self.state = state
        self._node_of = node_of
        self._inserted = inserted

    def __missing__(self, code: int) -> tuple["_Node", int | None]:
        if self._inserted:
            state, _ = after(self.state, self._inserted.popleft())
            return self._node_of(state)[code]
        state, mark = after(self.state, code)
        found = self[code] = self._node_of(state), mark
        return found


def python_read(node: _Node, events: bytes) -> tuple[_Node, bytes]:
    """Return the node after *events*, and the boundaries at them."""
    boundaries: list[int] = []
    add, pairs = boundaries.extend, iter(unpacked(events))
    for code, at in zip(pairs, pairs, strict=True):
        node, mark = node[code]
        if mark is not None:
            add((mark, at))
    return node, packed(boundaries)


read: Callable[[_Node, bytes], tuple[_Node, bytes]] = python_read if _fold is None else _fold.read

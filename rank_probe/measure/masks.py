"""Attention masks, whose zeros are padding: counted later, and many at a time."""

import sys
import threading
from collections import deque
from typing import Any, Final

from rank_probe.guest.guard import never_raise

# With more of them, or of their elements, the training thread counts them, to bound memory.
MASKS_KEPT: Final = 256
ELEMENTS_KEPT: Final = 4_000_000
# Torch spreads a reduction of twice as many over threads (at::internal::GRAIN_SIZE): the pusher
# should have none of its own, and on busy CPUs training would wait for them, 7 ms and more.
ELEMENTS_AT_ONCE: Final = 16_384
# The mask of a batch: the tensor, samples, tokens, and zeros: None until they are counted, and
# then the tensor is. A list, to save the call of a class in each step.
Mask = list[Any]


class Masks:
    """The masks that are not counted yet. One thread adds, any may count."""

    def __init__(self) -> None:
        self._waiting: deque[Mask] = deque()
        self._elements = 0
        self._counting = threading.Lock()

    def add(self, mask: Mask) -> None:
        """Have *mask* counted later; each of its elements is a token."""
        self._waiting.append(mask)
        self._elements += mask[2]
        if len(self._waiting) > MASKS_KEPT or self._elements > ELEMENTS_KEPT:
            self.count(wait=False)

    @never_raise
    def count(self, *, wait: bool = True) -> None:
        """Count the zeros of all masks; without *wait*, skip it if another thread is about to."""
        if not self._counting.acquire(blocking=wait):
            return
        try:
            self._elements = 0
            alike: dict[Any, list[Mask]] = {}
            for _ in range(len(self._waiting)):
                mask = self._waiting.popleft()
                alike.setdefault(mask[0].shape, []).append(mask)
            for masks in alike.values():
                at_once = max(ELEMENTS_AT_ONCE // max(masks[0][2], 1), 1)
                for first in range(0, len(masks), at_once):
                    _count(masks[first : first + at_once])
        finally:
            self._counting.release()


def _count(masks: list[Mask]) -> None:
    """Count the zeros of *masks* of one shape: one by one, each costs several times more."""
    # A long mask is alone, and in parts; a copy of it would be spread over threads.
    tensors = [mask[0] for mask in masks]
    stack = tensors[0][None] if len(masks) == 1 else sys.modules["torch"].stack(tensors)
    stack = stack.flatten(1)
    parts = [part.count_nonzero(1).tolist() for part in stack.split(ELEMENTS_AT_ONCE, 1)]
    for mask, ones in zip(masks, map(sum, zip(*parts, strict=True)), strict=True):
        mask[3] = mask[2] - ones
        mask[0] = None

"""How much work the batches held: samples, tokens, and tokens that are only padding."""

import math
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rank_probe.guest.guard import failures, never_raise
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED

# With more masks or elements than this, the training thread counts them, to bound memory.
MASKS_KEPT: Final = 256
ELEMENTS_KEPT: Final = 4_000_000
# Torch spreads a reduction of twice this size over threads (at::internal::GRAIN_SIZE). The pusher
# should start none: on busy CPUs training would wait for them, for 7 ms and more.
ELEMENTS_AT_ONCE: Final = 16_384
# The mask of a batch: tensor, samples, tokens, zeros. The zeros are None until they are counted,
# the tensor is None afterwards. A list, to save a constructor call in each step.
Mask = list[Any]
# The content of a batch: samples, tokens, padding tokens; None where unknown.
Measure = Callable[[Any], tuple[int | None, int | None, int | None]]


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
    """Count the zeros of *masks* of one shape together; singly, each costs several times more."""
    # A long mask comes alone and is counted in parts: torch would copy it with several threads.
    tensors = [mask[0] for mask in masks]
    stack = tensors[0][None] if len(masks) == 1 else sys.modules["torch"].stack(tensors)
    stack = stack.flatten(1)
    parts = [part.count_nonzero(1).tolist() for part in stack.split(ELEMENTS_AT_ONCE, 1)]
    for mask, ones in zip(masks, map(sum, zip(*parts, strict=True)), strict=True):
        mask[3] = mask[2] - ones
        mask[0] = None


class Content(NamedTuple):
    """What a batch holds; None where unknown."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None


NOTHING: Final = Content()


class WorkUnits:
    """Counts work from the start of the probe; None while nothing was counted.

    Call `measure` on the training thread and `settle` on the thread that folds the events; any
    thread may add and read. The callable *measure* replaces the inspection of batches.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._lock = threading.Lock()
        self.given = measure
        # One per FETCHED event: samples, or more.
        self._measured: deque[int | Mask | Content] = deque()
        # May be called with a batch's rows instead of `measure` with the batch.
        self.count = None if measure is not None else self._measured.append
        self._masks = Masks()
        self._counted = self._added = NOTHING

    def measure(self, batch: Any) -> None:
        """Note what *batch* holds: rows of its first tensor, and a mapping's tokens. Never raises.

        Never waits for a device: a mask that is not on the CPU is not read. Call it once for each
        FETCHED event.
        """
        content: int | Mask | Content = NOTHING
        try:  # All in one function, to save calls with cold caches.
            kind = type(batch)
            if self.given is not None:
                content = Content(*map(_whole, self.given(batch)))
            elif kind is list or kind is tuple:
                content = (batch and _rows(batch[0])) or NOTHING
            elif kind is not dict and (rows := _rows(batch)):
                content = rows
            elif kind is dict or isinstance(batch, Mapping):
                words, mask = batch.get("input_ids"), batch.get("attention_mask")
                shape = getattr(words, "shape", None)
                if not shape:
                    content = next(filter(None, map(_rows, batch.values())), NOTHING)
                elif getattr(mask, "is_cpu", False) and mask.shape == shape:
                    seen: Mask = [mask, shape[0], math.prod(shape), None]
                    self._masks.add(seen)
                    content = seen
                else:
                    content = Content(shape[0], math.prod(shape))
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every batch
            failures.note("WorkUnits.measure")
        self._measured.append(content)

    @never_raise
    def add(self, *, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
        """Add work that the caller counted; zeros are not counted at all."""
        counted = Content(*(_whole(each) or None for each in (samples, tokens, padding_tokens)))
        with self._lock:
            self._added = _plus(self._added, counted)

    def settle(self, marks: Iterable[int]) -> None:
        """Count the batches that were trained with; *marks* are in the order of the events."""
        measured = self._measured
        samples = 0
        for mark in marks:
            batches = min(mark >> BATCHES_SHIFT, len(measured))
            if mark & USED:
                for _ in range(batches):
                    content = measured.popleft()
                    if type(content) is int:  # The ordinary batch.
                        samples += content
                    else:
                        self._count(content)
            elif mark & UNUSED:
                for _ in range(batches):
                    measured.popleft()
            elif mark & OTHER_BATCH and batches < len(measured):
                del measured[batches]
        if samples:
            self._counted = _plus(self._counted, Content(samples))

    def forget_batches(self) -> None:
        """Drop the batches that wait to be settled; they are never counted."""
        self._measured.clear()

    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Return samples, tokens and padding tokens of the batches that were used, and added."""
        return _plus(self._counted, self._added)

    def amount(self) -> float:
        """Return the tokens of the batches that were used, or else their samples; 0 if unknown."""
        samples, tokens, _ = self.totals()
        return float(tokens or samples or 0)

    def _count(self, content: int | Mask | Content) -> None:
        if isinstance(content, list):
            if content[-1] is None:
                self._masks.count()
            content = Content(*content[1:])
        if isinstance(content, Content):
            self._counted = _plus(self._counted, content)


def _whole(number: Any) -> int | None:
    """Return a user's count; raises TypeError if it is no integer or is on a device."""
    if number is None:
        return None
    if not getattr(number, "is_cpu", True):
        raise TypeError("to read a count that is on a device would wait for it")
    return operator.index(number)


def _plus(a: Content, b: Content) -> Content:
    return Content(*map(_sum, a, b))


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _rows(tensor: Any) -> int | None:
    shape = getattr(tensor, "shape", None)
    return int(shape[0]) if shape else None

"""How much work the batches held: samples, tokens, and tokens that are only padding."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rank_probe.guest.guard import failures, never_raise
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED
from rank_probe.measure.masks import Mask, Masks

# The content of a batch: samples, tokens, padding tokens; None if it does not show.
Measure = Callable[[Any], tuple[int | None, int | None, int | None]]


class Content(NamedTuple):
    """What a batch holds, as far as it shows."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None


NOTHING: Final = Content()


class WorkUnits:
    """Counts work from the start of the probe; None while nothing was counted.

    `measure` is for the training thread, `settle` for whoever folds the events; any thread may add
    and read. *measure* replaces the inspection of batches.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._lock = threading.Lock()
        self.given = measure
        # One per FETCHED event: samples, or more.
        self._measured: deque[int | Mask | Content] = deque()
        # May be called with a batch's rows instead of `measure` with the batch.
        self.count = None if measure is not None else self._measured.append
        self._masks = Masks()
        self._counted = WorkSums()
        self._added = WorkSums()

    def measure(self, batch: Any) -> None:
        """Note what *batch* holds: rows of its first tensor, and a mapping's tokens. Never raises.

        Never waits for a device: a mask that is not on the CPU is not read. Call it once for each
        FETCHED event.
        """
        content: int | Mask | Content = NOTHING
        try:  # All in one function, to save calls with cold caches.
            kind = type(batch)
            if self.given is not None:
                content = Content(*self.given(batch))
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
                    seen: Mask = [mask, shape[0], words.numel(), None]
                    self._masks.add(seen)
                    content = seen
                else:
                    content = Content(shape[0], words.numel())
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every batch
            failures.note("WorkUnits.measure")
        self._measured.append(content)

    @never_raise
    def add(self, *, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
        """Add work that the caller counted; zeros are not counted at all."""
        with self._lock:
            self._added.add(Content(samples or None, tokens or None, padding_tokens or None))

    def settle(self, marks: Iterable[int]) -> None:
        """Hear, in the order of the events, which batches were trained with."""
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
            self._counted.samples = (self._counted.samples or 0) + samples

    def forget_batches(self) -> None:
        """Count none of the batches that wait to be settled."""
        self._measured.clear()

    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Return samples, tokens and padding tokens of the batches that were used, and added."""
        a, b = self._counted, self._added
        return (
            _sum(a.samples, b.samples),
            _sum(a.tokens, b.tokens),
            _sum(a.padding_tokens, b.padding_tokens),
        )

    def amount(self) -> float:
        """Return the tokens of the batches that were used, or else their samples; 0 if unknown."""
        samples, tokens, _ = self.totals()
        return float(tokens or samples or 0)

    def _count(self, content: int | Mask | Content) -> None:
        counted = self._counted
        if type(content) is list:
            if content[-1] is None:
                self._masks.count()
            _, samples, tokens, zeros = content
            counted.samples = (counted.samples or 0) + samples
            counted.tokens = (counted.tokens or 0) + tokens
            counted.padding_tokens = _sum(counted.padding_tokens, zeros)
        elif isinstance(content, Content):
            counted.add(content)


@dataclass
class WorkSums:
    """Samples, tokens and padding tokens; None while there were none."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None

    def add(self, content: Content) -> None:
        """Add *content*."""
        self.samples = _sum(self.samples, content.samples)
        self.tokens = _sum(self.tokens, content.tokens)
        self.padding_tokens = _sum(self.padding_tokens, content.padding_tokens)


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _rows(tensor: Any) -> int | None:
    shape = getattr(tensor, "shape", None)
    return int(shape[0]) if shape else None

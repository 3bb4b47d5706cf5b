"""How much work the batches held: samples, tokens, and tokens that are only padding."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rank_probe.guard import failures, never_raise

# Masks with zeros that are not counted yet. Reading one costs 4 µs and more, so it is left to the
# pusher; beyond these numbers the training thread does it, to bound memory.
MASKS_KEPT: Final = 256
ELEMENTS_KEPT: Final = 4_000_000
# Torch spreads larger reductions over threads, and the pusher should have none of its own.
ELEMENTS_AT_ONCE: Final = 32_768

# The content of a batch: samples, tokens, padding tokens; None if it does not show.
Measure = Callable[[Any], tuple[int | None, int | None, int | None]]


class WorkUnits:
    """Counts work from the start of the probe; None while nothing was counted.

    The thread that created it counts; calls from other threads do nothing. Any thread may read.
    *measure* replaces the inspection of batches. *batches* is how many were inspected.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._owner = threading.get_ident()
        self._samples: int | None = None
        self._tokens: int | None = None
        self._padding: int | None = None
        self._padding_read: int | None = None  # from masks, by whoever holds the lock
        self._masks: list[Any] = []
        self._elements = 0
        self._lock = threading.Lock()
        self.batches = 0
        self._measure = measure

    def count(self, batch: Any) -> None:
        """Add the work in *batch*: rows of its first tensor, and a mapping's tokens. Never raises.

        Never waits for a device: a mask that is not on the CPU is not read.
        """
        try:
            if threading.get_ident() != self._owner:
                return
            self.batches += 1
            if self._measure is not None:
                self._add(*self._measure(batch))
                return
            kind = type(batch)
            first = batch[0] if (kind is list or kind is tuple) and batch else batch
            shape = getattr(first, "shape", None)
            if shape:
                self._samples = (self._samples or 0) + shape[0]
            elif isinstance(batch, Mapping):
                self._count_mapping(batch)
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every batch
            failures.note("WorkUnits.count")

    @never_raise
    def add(self, *, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
        """Add work that the caller counted; zeros are not counted at all."""
        self._add(samples or None, tokens or None, padding_tokens or None)

    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Return samples, tokens and padding tokens so far, None for those never seen."""
        with self._lock:
            self._read_masks()
            told, read = self._padding, self._padding_read
        return self._samples, self._tokens, read if told is None else told + (read or 0)

    def _count_mapping(self, batch: Mapping[Any, Any]) -> None:
        words = batch.get("input_ids")
        shapes = (getattr(each, "shape", None) for each in batch.values())
        shape = getattr(words, "shape", None) or next(filter(None, shapes), None)
        if not shape:
            return
        self._add(shape[0], None if words is None else words.numel(), None)
        mask: Any = batch.get("attention_mask")
        if words is not None and getattr(mask, "is_cpu", False) and mask.shape == shape:
            self._keep(mask)

    def _keep(self, mask: Any) -> None:
        self._masks.append(mask)
        self._elements += mask.numel()
        many = len(self._masks) > MASKS_KEPT or self._elements > ELEMENTS_KEPT
        if many and self._lock.acquire(blocking=False):  # Otherwise the pusher is reading them.
            try:
                self._read_masks()
            finally:
                self._lock.release()

    def _add(self, samples: int | None, tokens: int | None, padding: int | None) -> None:
        if threading.get_ident() != self._owner:
            return
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens
        if padding is not None:
            self._padding = (self._padding or 0) + padding

    def _read_masks(self) -> None:
        """Count the zeros of the masks kept; hold the lock. The owner may add masks meanwhile."""
        self._elements = 0
        while self._masks:
            self._padding_read = (self._padding_read or 0) + _zeros(self._masks.pop())


def _zeros(mask: Any) -> int:
    torch = sys.modules["torch"]
    parts = mask.flatten().split(ELEMENTS_AT_ONCE)
    return int(mask.numel()) - sum(int(torch.count_nonzero(part)) for part in parts)

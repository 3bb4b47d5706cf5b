"""How much work the batches held: samples, tokens, and tokens that are only padding."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rank_probe.guest.guard import failures, never_raise
from rank_probe.measure.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED
from rank_probe.measure.masks import Mask, Masks

# The content of a batch: samples, tokens, padding tokens; None if it does not show.
Measure = Callable[[Any], tuple[int | None, int | None, int | None]]


class Content(NamedTuple):
    """What a batch holds; the zeros of *mask* are padding."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None
    mask: Mask | None = None


NOTHING: Final = Content()


class WorkUnits:
    """Counts work from the start of the probe; None while nothing was counted.

    `measure` is for the training thread, `settle` for whoever folds the events; any thread may add
    and read. *measure* replaces the inspection of batches.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._lock = threading.Lock()
        self._given = measure
        self._measured: deque[int | Content] = deque()  # one per FETCHED event, samples or more
        self._masks = Masks()
        self._counted = WorkSums()
        self._added = WorkSums()

    def measure(self, batch: Any) -> None:
        """Note what *batch* holds: rows of its first tensor, and a mapping's tokens. Never raises.

        Never waits for a device: a mask that is not on the CPU is not read. Call it once for each
        FETCHED event.
        """
        content: int | Content = NOTHING
        try:
            if self._given is not None:
                content = Content(*self._given(batch))
            elif type(batch) is list or type(batch) is tuple:
                content = _rows(batch[0] if batch else None) or NOTHING
            else:
                content = self._look(batch)
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every batch
            failures.note("WorkUnits.measure")
        self._measured.append(content)

    @never_raise
    def add(self, *, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
        """Add work that the caller counted; zeros are not counted at all."""
        with self._lock:
            self._added.add(Content(samples or None, tokens or None, padding_tokens or None))

    def settle(self, mark: int) -> None:
        """Hear, in the order of the events, which batches were trained with."""
        batches = min(mark >> BATCHES_SHIFT, len(self._measured))
        if mark & OTHER_BATCH and batches < len(self._measured):
            del self._measured[batches]
        elif mark & (USED | UNUSED):
            for _ in range(batches):
                content = self._measured.popleft()
                if mark & USED:
                    self._count(content)

    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Return samples, tokens and padding tokens of the batches that were used, and added."""
        a, b = self._counted, self._added
        return (
            _sum(a.samples, b.samples),
            _sum(a.tokens, b.tokens),
            _sum(a.padding_tokens, b.padding_tokens),
        )

    def _look(self, batch: Any) -> int | Content:
        if rows := _rows(batch):
            return rows
        return self._look_into(batch) if isinstance(batch, Mapping) else NOTHING

    def _look_into(self, batch: Mapping[Any, Any]) -> Content:
        words = batch.get("input_ids")
        shapes = (getattr(each, "shape", None) for each in batch.values())
        shape = getattr(words, "shape", None) or next(filter(None, shapes), None)
        if not shape:
            return NOTHING
        mask: Any = batch.get("attention_mask")
        has_mask = words is not None and getattr(mask, "is_cpu", False) and mask.shape == shape
        tokens = None if words is None else words.numel()
        return Content(shape[0], tokens, None, self._masks.add(mask) if has_mask else None)

    def _count(self, content: int | Content) -> None:
        if type(content) is int:  # The ordinary batch.
            self._counted.samples = (self._counted.samples or 0) + content
        elif isinstance(content, Content):
            self._counted.add(content)
            if content.mask is not None:
                if content.mask.zeros is None:
                    self._masks.count()
                self._counted.add(Content(padding_tokens=content.mask.zeros))


@dataclass
class WorkSums:
    """Samples, tokens and padding tokens; None while there were none."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None

    def add(self, content: Content) -> None:
        """Add *content*, except its mask."""
        self.samples = _sum(self.samples, content.samples)
        self.tokens = _sum(self.tokens, content.tokens)
        self.padding_tokens = _sum(self.padding_tokens, content.padding_tokens)


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _rows(tensor: Any) -> int | None:
    shape = getattr(tensor, "shape", None)
    return int(shape[0]) if shape else None

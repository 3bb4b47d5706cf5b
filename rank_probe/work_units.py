"""How much work the batches held: samples, tokens, and tokens that are only padding."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rank_probe.boundaries import BATCHES_SHIFT, OTHER_BATCH, UNUSED, USED
from rank_probe.guard import failures, never_raise

# Masks with zeros that are not counted yet. Reading one costs 4 µs and more, so it is left to the
# pusher; beyond these numbers the training thread does it, to bound memory.
MASKS_KEPT: Final = 256
ELEMENTS_KEPT: Final = 4_000_000
# Torch spreads larger reductions over threads, and the pusher should have none of its own.
ELEMENTS_AT_ONCE: Final = 32_768

# The content of a batch: samples, tokens, padding tokens; None if it does not show.
Measure = Callable[[Any], tuple[int | None, int | None, int | None]]


class Content(NamedTuple):
    """What a batch holds; *mask* is one whose zeros are padding, not counted yet."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None
    mask: Any = None


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
        self._kept = _Kept()
        self._counted = Sums()
        self._added = Sums()

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
                content = _look(batch)
            if type(content) is Content and content.mask is not None:
                content = self._kept.keep(content)
        except Exception:  # noqa: BLE001 - as guard.never_raise, without its call at every batch
            failures.note("WorkUnits.measure")
        self._measured.append(content)

    @property
    def rows(self) -> Callable[[int], None] | None:
        """What takes the rows of a batch instead of `measure`; None if they are not all of it."""
        return self._measured.append if self._given is None else None

    @never_raise
    def add(self, *, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
        """Add work that the caller counted; zeros are not counted at all."""
        with self._lock:
            self._added.add(Content(samples or None, tokens or None, padding_tokens or None))

    def settle(self, mark: int) -> None:
        """Hear, in the order of the events, which batches were trained with."""
        batches = min(mark >> BATCHES_SHIFT, len(self._measured))
        if mark & USED:
            for _ in range(batches):
                self._count(self._measured.popleft())
        elif mark & UNUSED:
            for _ in range(batches):
                self._kept.forget(self._measured.popleft())
        elif mark & OTHER_BATCH and batches < len(self._measured):
            self._kept.forget(self._measured[batches])
            del self._measured[batches]

    def totals(self) -> tuple[int | None, int | None, int | None]:
        """Return samples, tokens and padding tokens of the batches that were used, and added."""
        a, b = self._counted, self._added
        return (
            _sum(a.samples, b.samples),
            _sum(a.tokens, b.tokens),
            _sum(a.padding_tokens, b.padding_tokens),
        )

    def _count(self, content: int | Content) -> None:
        if type(content) is int:  # The ordinary batch.
            self._counted.samples = (self._counted.samples or 0) + content
        elif isinstance(content, Content):
            self._counted.add(self._kept.read(content))


@dataclass
class Sums:
    """Samples, tokens and padding tokens; None while there were none."""

    samples: int | None = None
    tokens: int | None = None
    padding_tokens: int | None = None

    def add(self, content: Content) -> None:
        """Add what is known of *content*, except its mask."""
        self.samples = _sum(self.samples, content.samples)
        self.tokens = _sum(self.tokens, content.tokens)
        self.padding_tokens = _sum(self.padding_tokens, content.padding_tokens)


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


class _Kept:
    """Bounds the masks that wait to be read. One thread keeps, another reads or forgets."""

    def __init__(self) -> None:
        self._kept = self._kept_elements = 0
        self._gone = self._gone_elements = 0

    def keep(self, content: Content) -> Content:
        elements = content.mask.numel()
        masks = self._kept - self._gone
        if masks >= MASKS_KEPT or self._kept_elements - self._gone_elements > ELEMENTS_KEPT:
            return _read(content)
        self._kept += 1
        self._kept_elements += elements
        return content

    def read(self, content: Content) -> Content:
        self.forget(content)
        return _read(content)

    def forget(self, content: int | Content) -> None:
        if isinstance(content, Content) and content.mask is not None:
            self._gone += 1
            self._gone_elements += content.mask.numel()


def _read(content: Content) -> Content:
    if content.mask is None:
        return content
    return content._replace(padding_tokens=_zeros(content.mask), mask=None)


def _look(batch: Any) -> int | Content:
    if rows := _rows(batch):
        return rows
    return _look_into(batch) if isinstance(batch, Mapping) else NOTHING


def _rows(tensor: Any) -> int | None:
    shape = getattr(tensor, "shape", None)
    return int(shape[0]) if shape else None


def _look_into(batch: Mapping[Any, Any]) -> Content:
    words = batch.get("input_ids")
    shapes = (getattr(each, "shape", None) for each in batch.values())
    shape = getattr(words, "shape", None) or next(filter(None, shapes), None)
    if not shape:
        return NOTHING
    mask: Any = batch.get("attention_mask")
    has_mask = words is not None and getattr(mask, "is_cpu", False) and mask.shape == shape
    tokens = None if words is None else words.numel()
    return Content(shape[0], tokens, None, mask if has_mask else None)


def _zeros(mask: Any) -> int:
    torch = sys.modules["torch"]
    parts = mask.flatten().split(ELEMENTS_AT_ONCE)
    return int(mask.numel()) - sum(int(torch.count_nonzero(part)) for part in parts)

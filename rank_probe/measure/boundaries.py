"""Boundaries between stages: what the ledger adds up, on the host's clock or a device's.

A boundary is two integers: a mark and a time in nanoseconds. The low bits of a mark hold the number
of the stage that begins there, the bits above hold flags. Boundaries and events are passed around
as packed 8-byte integers (mark, time, mark, time...). A list costs as much to build as to read.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

STAGE_BITS: Final = 15
BEGIN: Final = 1 << 4  # counting begins here: the step so far is incomplete
RELEASE: Final = 1 << 5  # a wait for other ranks ended here
COMPLETE: Final = 1 << 6  # the step is over: it ended at the last release, or here without one

# Flags for readers other than the ledger, in the order of the events.
USED: Final = 1 << 7  # pending batches were trained with; bits from BATCHES_SHIFT up count them
UNUSED: Final = 1 << 8  # ... or were not: their loader ended, and no backward followed
OTHER_BATCH: Final = 1 << 9  # a batch arrived after the pending ones, and training does not use it
UNCUT: Final = 1 << 10  # the wait in a backward was not split from its computation
SETTLES: Final = USED | UNUSED | OTHER_BATCH | UNCUT
BATCHES_SHIFT: Final = 11


def packed(numbers: Iterable[int]) -> bytes:
    """Return *numbers*, marks or event codes each followed by its time, as packed bytes."""
    return array("q", numbers).tobytes()


def unpacked(pairs: bytes) -> Sequence[int]:
    """Return the integers in *pairs*, bytes from `packed`."""
    return memoryview(pairs).cast("q")

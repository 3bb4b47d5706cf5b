"""Boundaries between stages: what the ledger adds up, on the host's clock or a device's.

A boundary is two integers: the number of the stage that begins there with marks in the bits above
it, and the time in nanoseconds. Boundaries travel as bytes: mark, time, mark, time... of 8 bytes
each, and so do events. Lists would cost as much to make as to read.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

STAGE_BITS: Final = 15
BEGIN: Final = 1 << 4  # counting begins here: the step so far is incomplete
RELEASE: Final = 1 << 5  # a wait for other ranks ended here
COMPLETE: Final = 1 << 6  # the step is over: it ended at the last release, or here without one

# What others than the ledger want to know, in the order of the events.
USED: Final = 1 << 7  # the batches that arrived lately were trained with; BATCHES says how many
UNUSED: Final = 1 << 8  # ... or not: their loader ended, and no backward followed
OTHER_BATCH: Final = 1 << 9  # a batch arrived after these, and training does not use it
UNCUT: Final = 1 << 10  # the wait in a backward was not split from its computation
SETTLES: Final = USED | UNUSED | OTHER_BATCH | UNCUT
BATCHES_SHIFT: Final = 11


def packed(numbers: Iterable[int]) -> bytes:
    """Return *numbers*, a mark or an event and its time in turn, as they travel."""
    return array("q", numbers).tobytes()


def unpacked(pairs: bytes) -> Sequence[int]:
    """Return what was packed."""
    return memoryview(pairs).cast("q")

"""Blocks of steps: what a rank reports if no join compares it with its peers.

Blocks end where the step number is a multiple of a power of two, so all ranks report the mean of
the same steps without communicating.
"""

from typing import Any, Final

from rank_probe.measure.steps import Steps, StepVector, Vectors
from rank_probe.wire.stages import STAGES

LEAST_SECONDS: Final = 30.0
LEAST_STEPS: Final = 16
# Until a block ends, steps wait to be added this many at once: with cold caches, few cost as much.
AT_ONCE: Final = 64


class Blocks:
    """Keeps the last whole block of *steps* while it is needed; for one thread.

    The first *before* steps belong to earlier process groups, which some ranks were not in.
    """

    def __init__(self, steps: Steps, before: int = 0) -> None:
        self._steps = steps
        self._before = before
        self._kept: Vectors | None = None
        self._size = LEAST_STEPS
        self._begin()
        self._last: dict[str, Any] = {}

    def is_of(self, steps: Steps, before: int) -> bool:
        """Whether these are blocks of *steps* after the first *before*."""
        return self._steps is steps and self._before == before

    def snapshot_fields(self) -> dict[str, Any]:
        """Return the block's fields of a Snapshot; empty before the first whole block.

        Steps that have not been folded yet may be missing.
        """
        if self._kept is None:
            self._kept = self._steps.keep()
        waiting = self._kept.waiting
        if not waiting or (len(waiting) < AT_ONCE and waiting[-1][0] < self._end(waiting[0][0])):
            return self._last
        vectors = self._kept.take()
        while vectors:
            last = self._end(vectors[0].step)
            within = [each for each in vectors if each.step <= last]
            self._add(within)
            vectors = vectors[len(within) :]
        return self._last

    def forget(self) -> None:
        """Keep no more steps until needed again."""
        if self._kept is not None:
            self._steps.forget(self._kept)
            self._kept, self._last = None, {}
            self._begin()

    def _end(self, step: int) -> int:
        """Return the last step of the block that *step* is in."""
        return step - (step - self._before) % -self._size

    def _begin(self) -> None:
        self._sums = [0] * len(STAGES)
        self._count = 0

    def _add(self, vectors: list[StepVector]) -> None:
        """Add steps of one block, perhaps its last ones."""
        spent = (each.nanoseconds for each in vectors)
        self._sums = [sum(stage) for stage in zip(self._sums, *spent, strict=True)]
        self._count += len(vectors)
        if (vectors[-1].step - self._before) % self._size:
            return
        if self._count == self._size:
            self._last = {
                "block_steps": self._count,
                "block_seconds": {
                    stage: each / self._count / 1e9
                    for stage, each in zip(STAGES, self._sums, strict=True)
                    if each
                },
            }
        mean_seconds = sum(self._sums) / self._count / 1e9
        while 0 < self._size * mean_seconds < LEAST_SECONDS:
            self._size *= 2
        while self._size > LEAST_STEPS and self._size / 2 * mean_seconds >= LEAST_SECONDS:
            self._size //= 2
        self._begin()

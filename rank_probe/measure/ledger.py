"""The ledger: adds up the time between boundaries, and commits whole steps, cut at the release.

It exists twice: here, and in _fold.c at a lower cost. Tests keep the two equal.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rank_probe.measure.boundaries import BEGIN, COMPLETE, RELEASE, SETTLES, STAGE_BITS, unpacked
from rank_probe.wire.stages import OTHER, STAGES, SYNC

try:
    from rank_probe import _fold  # type: ignore[attr-defined]  # built where there is a compiler
except ImportError:
    _fold = None


class StepTotals(NamedTuple):
    """Counters over all whole steps: nanoseconds per stage, in the order of STAGES.

    *spent* includes the unfinished step up to the last boundary, *elapsed_seconds* ago.
    """

    nanoseconds: tuple[int, ...]
    steps: int
    last_step_timestamp_seconds: float | None
    spent: tuple[int, ...]
    elapsed_seconds: float

    @property
    def busy_nanoseconds(self) -> int:
        """All time except the exposed wait."""
        return sum(self.nanoseconds) - self.nanoseconds[SYNC]


# A whole step: when it ended, and its nanoseconds per stage.
WholeStep = tuple[int, tuple[int, ...]]


class Ledger(Protocol):
    """Counts steps that run from one release to the next; for one thread at a time.

    The *release* is the end of the last collective of a step, when all ranks continue together. It
    is only known afterwards: each candidate is marked, and the mark where the next step visibly
    begins commits the time up to the last candidate. Later time belongs to the next step. Otherwise
    a delay after the collective would be charged to the ranks that wait for it.

    *since* is when the current stage began.
    """

    since: int
    steps: int
    last_completed: int | None

    @property
    def nanoseconds(self) -> Sequence[int]:
        """Return all time per stage up to *since*, the unfinished step included."""

    @property
    def committed(self) -> Sequence[int]:
        """Return the time per stage of whole steps."""

    def add(self, boundaries: bytes, /) -> tuple[list[WholeStep], list[int]]:
        """Add up *boundaries*, packed.

        Return the steps that they complete, and their marks that have a bit of SETTLES.
        """


class PythonLedger:
    """A ledger in Python."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.nanoseconds = [0] * len(STAGES)
        self._stage = OTHER
        self._at_release: list[int] | None = None
        self._release_time = 0
        self.committed = [0] * len(STAGES)
        self.steps = 0
        self.last_completed: int | None = None

    def add(self, boundaries: bytes, /) -> tuple[list[WholeStep], list[int]]:
        """See Ledger."""
        whole: list[WholeStep] = []
        settling: list[int] = []
        nanoseconds, stage, since = self.nanoseconds, self._stage, self.since
        pairs = iter(unpacked(boundaries))
        try:
            for mark, now in zip(pairs, pairs, strict=True):
                nanoseconds[stage] += now - since
                since = now
                if mark <= STAGE_BITS:
                    stage = mark
                    continue
                stage = mark & STAGE_BITS
                if mark & BEGIN:
                    nanoseconds[:] = self.committed
                    self._at_release = None
                if mark & RELEASE:
                    self._at_release = nanoseconds[:]
                    self._release_time = now
                if mark & COMPLETE:
                    whole.append(self._commit(now))
                if mark & SETTLES:
                    settling.append(mark)
        finally:  # Even if interrupted, or time would count twice.
            self._stage, self.since = stage, since
        return whole, settling

    def _commit(self, now: int) -> WholeStep:
        before, after, ended = self.committed, self._at_release, self._release_time
        if after is None:
            after, ended = self.nanoseconds[:], now
        self._at_release = None
        spent = tuple(a - b for a, b in zip(after, before, strict=True))
        self.steps += 1
        self.committed = after
        self.last_completed = now
        return ended, spent


new_ledger: Callable[[int], Ledger] = PythonLedger if _fold is None else _fold.Ledger

"""What a rank did lately: its mean step by stage in the last minute, and every ten seconds."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES

WINDOW_SECONDS: Final = 60.0
# Fewer steps show nothing. With slow steps the window holds this many, however long they take.
MINIMUM_STEPS: Final = 5
# The first steps compile kernels and fill caches.
WARMUP_STEPS: Final = 5
COLUMN_SECONDS: Final = 10.0
COLUMNS: Final = 60

# Seconds per step by stage; None for a column in which the rank finished no step.
Column = dict[str, float] | None


class StageTimes(NamedTuple):
    """The part of a snapshot that a window keeps; a whole one, with its verdict, is far larger."""

    sampled: float
    steps: int
    stage_seconds: Mapping[str, float]


class RankWindow:
    """The last minute of one rank: the moments in which its step count changed."""

    def __init__(self) -> None:
        self._samples: deque[StageTimes] = deque()
        self._process: tuple[float, int] | None = None

    def add(self, now: float, snapshot: Snapshot) -> None:
        """Record the rank's state at *now*; a new process of the rank starts a new window."""
        if self._process != process_of(snapshot):
            self._samples.clear()
            self._process = process_of(snapshot)
        if snapshot.steps < WARMUP_STEPS:
            return
        if not self._samples or self._samples[-1].steps < snapshot.steps:
            self._samples.append(StageTimes(now, snapshot.steps, snapshot.stage_seconds))
        while self._second_is_enough(now):
            self._samples.popleft()

    def stage_seconds(self) -> dict[str, float] | None:
        """Return the mean seconds per step in each stage; None while the window is too short."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        steps = last.steps - first.steps
        if steps < MINIMUM_STEPS:
            return None
        before = first.stage_seconds
        return {
            # Never below zero, whatever a rank reports: a bar has no negative width.
            stage: max(0.0, last.stage_seconds[stage] - before.get(stage, 0.0)) / steps
            for stage in STAGES
            if stage in last.stage_seconds
        }

    def _second_is_enough(self, now: float) -> bool:
        if len(self._samples) < 3:
            return False
        second = self._samples[1]
        steps_left = self._samples[-1].steps - second.steps
        return second.sampled <= now - WINDOW_SECONDS and steps_left >= MINIMUM_STEPS


def process_of(snapshot: Snapshot) -> tuple[float, int]:
    return snapshot.started_timestamp_seconds, snapshot.pid


class RankHistory:
    """The last ten minutes in columns of ten seconds that begin at the same time for all ranks."""

    def __init__(self) -> None:
        self._columns: deque[Column] = deque(maxlen=COLUMNS)
        self._process: tuple[float, int] | None = None
        self._current = 0
        self._from = StageTimes(0.0, 0, {})

    def add(self, now: float, snapshot: Snapshot) -> None:
        """Record the rank's state at *now*; the first in a column ends the one before."""
        current = int(now // COLUMN_SECONDS)
        here = StageTimes(now, snapshot.steps, snapshot.stage_seconds)
        if self._process is None:
            self._current, self._from = current, here
        if self._process != process_of(snapshot):
            self._process, self._from = process_of(snapshot), here
        if current == self._current:
            return
        self._end(here)
        missed = min(current - self._current - 1, COLUMNS)
        self._columns.extend([None] * missed)
        self._current = current

    def columns(self) -> list[Column]:
        """Return the columns that have ended, the oldest first."""
        return list(self._columns)

    def _end(self, here: StageTimes) -> None:
        steps = here.steps - self._from.steps
        if steps <= 0:
            self._columns.append(None)
            return
        column = {
            stage: _short(max(0.0, here.stage_seconds[stage] - before) / steps)
            for stage in STAGES
            if stage in here.stage_seconds
            and here.stage_seconds[stage] > (before := self._from.stage_seconds.get(stage, 0.0))
        }
        self._columns.append(column)
        self._fill(column, sum(column.values()))
        self._from = here

    def _fill(self, column: Column, step_seconds: float) -> None:
        """Repeat *column* where the same long step had begun, which was counted only at its end."""
        longest = math.ceil(min(step_seconds / COLUMN_SECONDS, COLUMNS))
        for back in range(2, min(longest + 1, len(self._columns)) + 1):
            if self._columns[-back] is not None:
                return
            self._columns[-back] = column


def _short(seconds: float) -> float:
    return float(f"{seconds:.3g}")  # Finer than the strip can show, and a quarter of the bytes.

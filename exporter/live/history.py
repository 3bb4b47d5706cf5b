"""The last ten minutes of one rank: its mean step by stage, for every ten seconds."""

import math
from collections import deque
from typing import Final

from exporter.live.window import StageTimes, process_of
from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES

COLUMN_SECONDS: Final = 10.0
COLUMNS: Final = 60

# Seconds per step by stage; None for a column in which the rank finished no step.
Column = dict[str, float] | None


class RankHistory:
    """Columns of ten seconds that begin at the same time for all ranks."""

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

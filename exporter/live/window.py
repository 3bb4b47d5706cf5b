"""What a rank did lately: its mean step by stage in the last minute."""

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

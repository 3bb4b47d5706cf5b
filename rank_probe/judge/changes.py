"""Changes: peer groups that take longer than before, although none of their ranks is late."""

import math
from dataclasses import dataclass
from typing import Final

from rank_probe.judge.verdict import MOST_CHANGES, Change
from rank_probe.judge.windows import (
    WORK_STAGES,
    Mark,
    MarkHistory,
    Reduction,
    Window,
    WindowGroup,
    change_point,
)

# A hiccup of the whole job is not a change.
LEAST_SECONDS: Final = 30.0
CHANGE_RATIO, BACK_RATIO = 1.15, 1.07
# Standard errors; noise that all ranks share is not independent from step to step.
ERRORS: Final = 8.0
# A stage that took less than this share of a step counts as absent.
STAGE_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Slower:
    """A group that is slower since *onset*; *usual* is its seconds per step until then."""

    stage: int
    onset: Mark
    usual: float
    usual_stage: float


class Changes:
    """Compares each group with its own past."""

    def __init__(self, reduction: Reduction, history: MarkHistory) -> None:
        self._reduction = reduction
        self._history = history
        self._slower: dict[str, Slower] = {}

    def named(self, windows: list[Window], end: Mark) -> tuple[Change, ...]:
        """Return the groups that are slower than they were."""
        for window in windows:
            if window.elapsed >= LEAST_SECONDS and window.steps_before:
                for group in window.groups:
                    self._look_at(group, window, end)
                break
        for group in windows[0].groups:
            slower = self._slower.get(group.name)
            if slower is not None and self._recent(group.name, windows) < BACK_RATIO * slower.usual:
                del self._slower[group.name]
        return tuple(self._change(name, end) for name in sorted(self._slower))[:MOST_CHANGES]

    def _look_at(self, group: WindowGroup, window: Window, end: Mark) -> None:
        if group.name in self._slower or group.baseline_before <= 0:
            return
        longer = group.baseline - group.baseline_before
        error = math.sqrt(group.baseline_variance * (1 / window.steps + 1 / window.steps_before))
        if longer < (CHANGE_RATIO - 1) * group.baseline_before or longer < ERRORS * error:
            return
        more = [a - b for a, b in zip(group.stages, group.stages_before, strict=True)]
        stage = max(range(len(more)), key=lambda at: more[at])
        marks = self._history.marks
        usual = group.baseline_before
        onset = change_point(
            marks, self._reduction.group_path(group.name, marks), usual + longer / 2
        )
        self._slower[group.name] = Slower(stage, onset, usual, group.stages_before[stage])

    def _recent(self, name: str, windows: list[Window]) -> float:
        window = next((each for each in windows if each.elapsed >= LEAST_SECONDS), windows[-1])
        return next(group.baseline for group in window.groups if group.name == name)

    def _change(self, name: str, end: Mark) -> Change:
        slower = self._slower[name]
        since = self._reduction.window(slower.onset, end, ())
        group = next(group for group in since.groups if group.name == name)
        was = slower.usual_stage
        ratio = group.stages[slower.stage] / was if was > STAGE_SHARE * slower.usual else 0.0
        return Change(
            peer_group=name,
            stage=WORK_STAGES[slower.stage],
            ratio=ratio or group.baseline / slower.usual,
            since_seconds=end.at - slower.onset.at,
        )

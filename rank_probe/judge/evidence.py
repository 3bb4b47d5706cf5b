"""Evidence: how late one rank is in one window, and how sure that is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rank_probe.judge.windows import LEAST_STEPS, WORK_STAGES, Standing, Window, WindowGroup
from rank_probe.wire.stages import DATA, OTHER

# Below this excess ratio a rank is back with its peers.
LEAVE_RATIO: Final = 0.03
# Standard errors of the mean, for noise that is neither normal nor independent.
ENTER_ERRORS: Final = 6.0
# Raises ENTER_ERRORS over few steps, where the variance itself is a guess.
ERRORS_OF_FEW: Final = 8.0
# Steps, seconds, ratio: a jump is reported once it spans so many steps and seconds with at least
# this excess ratio, and none of its steps is as before.
JUMPS: Final = ((4, 30.0, 0.15), (8, 5.0, 0.15), (12, 30.0, 0.08))
# Stages with a smaller share of a rank's cost are not reported.
STAGE_SHARE: Final = 0.1
# Larger values add nothing, and are infinite if nothing varies or peers have no own time.
MOST_TIMES: Final = 1000.0
# Spreads of the peers that an excess must exceed.
SPREADS: Final = 5.0


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """How late one rank is in one window; *excess* and *error* are ratios of the baseline."""

    window: Window
    group: WindowGroup
    standing: Standing

    @property
    def baseline(self) -> float:
        """Return the group's baseline, but no less than 1 / MOST_TIMES of a step."""
        return max(self.group.baseline, self.window.seconds / self.window.steps / MOST_TIMES)

    @property
    def excess(self) -> float:
        return self.standing.excess / self.baseline

    @property
    def before(self) -> float:
        """Return its earlier excess, adjusted for how its peers have changed."""
        return (self.standing.before + self.group.rise) / self.baseline

    @property
    def error(self) -> float:
        """Return the standard error of the mean; over few steps, earlier variance counts too."""
        return self._error(with_before=self.window.steps < LEAST_STEPS)

    def _error(self, *, with_before: bool) -> float:
        before = self.standing.variance_before if with_before else 0.0
        variance = max(self.standing.variance, before, self.group.variance)
        return math.sqrt(variance / self.window.steps) / self.baseline

    def level_score(self) -> float:
        """Return the excess divided by what noise and the peers' spread could explain."""
        return self._times(self.excess, self.error, self.group.spread)

    def jump_score(self) -> float:
        """Return the same for a window in which it is late all the time.

        The noise includes the rank's earlier steps: if a different rank is late each time, a run of
        late steps can happen by chance.
        """
        return self._times(self.excess, self._error(with_before=True), self.group.spread)

    def rise_score(self) -> float:
        """Return the same for its rise since the earlier window."""
        if not self.window.steps_before:
            return 0.0
        before = math.sqrt(self.standing.variance_before / self.window.steps_before)
        error = math.hypot(self.error, before / self.baseline)
        return self._times(self.excess - self.before, error, self.group.rise_spread)

    def _times(self, excess: float, error: float, spread: float) -> float:
        """Return *excess* over what noise and peers explain, capped; if they explain 0, the cap."""
        explained = max(errors(self.window.steps) * error, SPREADS * spread / self.baseline)
        return min(excess / explained, MOST_TIMES) if explained else MOST_TIMES * (excess > 0)

    @property
    def is_alone(self) -> bool:
        """Whether no peer is half as late."""
        others = (each.excess for each in self.group.standing if each is not self.standing)
        return self.standing.excess > 2 * max(others, default=0.0)

    @property
    def paces(self) -> bool:
        """Whether it sets the job's pace: later than the heaviest group, about as late as any."""
        heaviest = max(group.baseline for group in self.window.groups)
        # The median rank is a usual one, unless more than half of them are late.
        is_usual = self.window.median <= heaviest * (1 + LEAVE_RATIO)
        furthest = (self.window.longest + (self.window.median if is_usual else heaviest)) / 2
        return self.standing.busy > max(heaviest * (1 + LEAVE_RATIO / 2), furthest)


def seen_in(windows: Sequence[Window]) -> Iterator[WindowEvidence]:
    """Yield the ranks that stand out among their peers, or are watched."""
    for window in windows:
        for group in window.groups:
            if group.ranks > 1:
                for standing in group.standing:
                    yield WindowEvidence(window, group, standing)


def evidence_on(rank: int, window: Window) -> WindowEvidence:
    """Return the evidence on *rank*, which stands out among its peers in *window* or is watched."""
    return next(each for each in seen_in([window]) if each.standing.rank == rank)


def errors(steps: int) -> float:
    """Return how many standard errors rule out chance for a mean of so many *steps*."""
    return ENTER_ERRORS * (1 + ERRORS_OF_FEW / steps)


def least_jump(steps: int, seconds: float) -> float:
    """Return the least excess ratio of a jump that lasts so long; infinite if it is too short."""
    return min(
        (ratio for of, during, ratio in JUMPS if steps >= of and seconds >= during),
        default=math.inf,
    )


# ---- A rank's excess, by stage -----------------------------------------------------------------


def furthest(excess: Sequence[float]) -> str:
    """Return the stage with the largest *excess*."""
    return WORK_STAGES[max(range(len(excess)), key=lambda at: excess[at])]


def renamed(excess: Sequence[float]) -> tuple[float, ...]:
    """Return *excess* with `other` moved to `data`, the name that the probe later gave it."""
    found = list(excess)
    found[DATA] += found[OTHER]
    found[OTHER] = 0.0
    return tuple(found)


def by_stage(gpus: float, excess: Sequence[float]) -> dict[str, float]:
    """Split *gpus* over the stages in which a rank exceeds its peers, without the small ones."""
    over = {stage: more for stage, more in zip(WORK_STAGES, excess, strict=True) if more > 0}
    told = {stage: more for stage, more in over.items() if more > STAGE_SHARE * sum(over.values())}
    return {stage: gpus * more / sum(told.values()) for stage, more in told.items()}

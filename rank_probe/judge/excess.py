"""A rank's excess over its peers, by stage."""

from collections.abc import Sequence
from typing import Final

from rank_probe.judge.windows import WORK_STAGES
from rank_probe.wire.stages import DATA, OTHER

# Stages with a smaller share of a rank's cost are not reported.
STAGE_SHARE: Final = 0.1


def furthest(excess: Sequence[float]) -> str:
    """Return the stage in which it is largest."""
    return WORK_STAGES[max(range(len(excess)), key=lambda at: excess[at])]


def renamed(excess: Sequence[float]) -> tuple[float, ...]:
    """Return *excess* with what was `other` before its name was known in `data`."""
    found = list(excess)
    found[DATA] += found[OTHER]
    found[OTHER] = 0.0
    return tuple(found)


def by_stage(gpus: float, excess: Sequence[float]) -> dict[str, float]:
    """Split *gpus* over the stages in which a rank exceeds its peers, without the small ones."""
    over = {stage: more for stage, more in zip(WORK_STAGES, excess, strict=True) if more > 0}
    told = {stage: more for stage, more in over.items() if more > STAGE_SHARE * sum(over.values())}
    return {stage: gpus * more / sum(told.values()) for stage, more in told.items()}

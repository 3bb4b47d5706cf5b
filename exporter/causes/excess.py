"""How much longer a late rank takes than its peers, by stage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.causes.model import Figures, Lateness, Peers
from rank_probe.wire.stages import STAGES

# An incident ends at this excess over the peers, so a rank that is late has more.
LEAST_RATIO: Final = 0.03
# No stage is shorter; as a share, it is negligible.
LEAST: Final = 1e-9
# Larger than anything counted or timed; values that ranks send each other have the same limit.
LARGEST: Final = 1e15
STEP: Final = "step_seconds"


def stage_figure(stage: str) -> str:
    """Return the name of the figure with a rank's own time in *stage*."""
    return f"{stage}_seconds"


@dataclass(frozen=True, slots=True)
class Excess:
    """Seconds a step by stage: a rank's *own*, its *peers*', and what it needs more, all positive.

    *step* is how long its whole step takes, as far as known. If *in_seconds* is false, its stages
    were not measured, and its own time counts as 1. *alone* are the stages that no peer has.
    """

    own: Mapping[str, float]
    peers: Mapping[str, float]
    more: Mapping[str, float]
    step: float
    in_seconds: bool
    alone: frozenset[str] = frozenset()

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.more.values())


def excess_of(late: Lateness, figures: Figures, peers: Peers) -> Excess:
    """Return the excess of a *late* rank with finite *figures* over those of its *peers*."""
    own = {stage: figures[name] for stage in STAGES if (name := stage_figure(stage)) in figures}
    own = {stage: seconds for stage, seconds in own.items() if seconds > LEAST}
    usual = {
        stage: peers[name].lower_third for stage in STAGES if (name := stage_figure(stage)) in peers
    }
    more = {
        stage: seconds - usual.get(stage, 0.0)
        for stage, seconds in own.items()
        if seconds - usual.get(stage, 0.0) > LEAST
    }
    step = max(figures.get(STEP, 0.0), sum(own.values()))
    # Whether its peers have a stage is known if any of their times is.
    if not any(usual.values()) or not more:
        return _from_verdict(late, own, step)
    alone = frozenset(
        stage
        for stage in more
        if (name := stage_figure(stage)) not in peers or peers[name].upper_third <= 0
    )
    return Excess(own, usual, more, step, in_seconds=True, alone=alone)


def _from_verdict(late: Lateness, own: Mapping[str, float], step: float) -> Excess:
    """Return the excess that the judge's ratio and the stages' parts of the cost imply."""
    ratio = late.ratio if LEAST < late.ratio < math.inf else LEAST_RATIO
    cost = {stage: gpus for stage, gpus in late.gpus.items() if 0 < gpus <= LARGEST}
    cost = cost or {late.stage: 1.0}
    all_of_it = sum(cost.values())
    parts = {stage: gpus / all_of_it for stage, gpus in cost.items() if gpus > LEAST * all_of_it}
    busy = sum(own.values()) or 1.0
    # Its excess over its peers is ratio / (1 + ratio) of its own time.
    more = {stage: part * busy * ratio / (1 + ratio) for stage, part in parts.items()}
    # A stage that was not measured gets the same share of the rank's time as of the cost.
    filled = {stage: own.get(stage, part * busy) for stage, part in parts.items()}
    longest = {stage: max(seconds, more[stage]) for stage, seconds in filled.items()}
    return Excess({**own, **longest}, {}, more, max(step, busy), in_seconds=bool(own))

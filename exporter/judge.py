"""Naming the late ranks of one node by their means over a window: what the live page says.

Pure functions. Baselines and thresholds are those of the recording rules, which see every node and
overrule this; the spread of the peers is a simpler guess than theirs, and a rank's own past is not
looked at. What a step costs, and whom, is in exporter/skew.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.skew import (
    SYNC,
    StageSeconds,
    baseline,
    busy_seconds,
    frontier,
    quantile,
    split_by_group,
    stage_baselines,
    unequal_groups,
)

# Healthy ranks of one job differ by 2 to 3 % for good.
LATE_RATIO: Final = 0.043
# How many times further from the baseline than its peers usually are.
LATE_SCORE: Final = 5.0
# From the 0.4-quantile of |excess| to one standard deviation, roughly; needs some peers.
SPREAD_QUANTILE: Final = 0.4
SPREAD_SCALE: Final = 1.75
SPREAD_PEERS: Final = 5
# A mean of a few noisy steps moves by its standard error, whoever is healthy.
STANDARD_ERRORS: Final = 1.2


@dataclass(frozen=True, slots=True)
class Late:
    """A rank the others wait for: *excess_seconds* a step over its peers, most of it in *stage*."""

    rank: int
    stage: str
    excess_seconds: float
    gpus_lost: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What can be said of a job's ranks; *reason* is set, and nothing else, when nothing can.

    *gpus_lost* counts all waiting for unequal work, *group_gpus_lost* the part of it that unequal
    peer groups cause (a heavier pipeline stage is nobody's fault).
    """

    late: tuple[Late, ...] = ()
    gpus_lost: float = 0.0
    group_gpus_lost: float = 0.0
    reason: str | None = None


def judge(
    ranks: Mapping[int, StageSeconds],
    peer_groups: Mapping[int, str] | None = None,
    standard_errors: Mapping[int, float] | None = None,
) -> Verdict:
    """Name the late ranks of one job, most costly first, and what each costs.

    *ranks* holds the stages of every rank seen, *peer_groups* the group of each (default: all
    are peers), *standard_errors* the uncertainty of each mean busy time in seconds (default:
    none). A step loses what every rank is faster than the slowest, summed: unequal groups are
    charged first, the late ranks share the rest by their excess over the heaviest group's
    baseline.
    """
    if reason := _not_judgeable(ranks):
        return Verdict(reason=reason)
    busy = {rank: busy_seconds(stages) for rank, stages in ranks.items()}
    step = sum(sum(stages.values()) for stages in ranks.values()) / len(ranks)
    groups = split_by_group(busy, peer_groups or {})
    heaviest, lost_to_groups = unequal_groups(groups)
    lost = len(busy) * frontier(ranks).seconds[-1] - sum(busy.values())
    # Late in a lighter group, but not later than the heaviest: nobody waits for that rank.
    stage_of = {
        rank: _late_stage(ranks[rank], [ranks[peer] for peer in group])
        for group in groups
        for rank in _late_ranks(group, standard_errors or {})
        if busy[rank] > heaviest
    }
    excess = {rank: busy[rank] - heaviest for rank in stage_of}
    cost = max(lost - lost_to_groups, 0.0) / step / (sum(excess.values()) or 1.0)
    late = [
        Late(rank, stage, excess[rank], cost * excess[rank]) for rank, stage in stage_of.items()
    ]
    late.sort(key=lambda each: (-each.gpus_lost, each.rank))
    return Verdict(tuple(late), lost / step, lost_to_groups / step)


def _not_judgeable(ranks: Mapping[int, StageSeconds]) -> str | None:
    if len(ranks) < 2:
        return "single_rank"
    if not all(SYNC in stages for stages in ranks.values()):
        return "no_sync"
    if not all(busy_seconds(stages) > 0 for stages in ranks.values()):
        return "no_busy_time"
    return None


def _late_ranks(busy: Mapping[int, float], standard_errors: Mapping[int, float]) -> list[int]:
    """Return the ranks of one peer group that stand out of its spread."""
    normal = baseline(list(busy.values()))
    excess = {rank: seconds / normal - 1 for rank, seconds in busy.items()}
    error = baseline([standard_errors.get(rank, 0.0) for rank in busy]) / normal
    spread = STANDARD_ERRORS * error
    if len(busy) >= SPREAD_PEERS:
        distances = [abs(ratio) for ratio in excess.values()]
        spread = max(spread, SPREAD_SCALE * quantile(SPREAD_QUANTILE, distances))
    limit = max(LATE_RATIO, LATE_SCORE * spread)
    return [rank for rank, ratio in excess.items() if ratio > limit]


def _late_stage(rank: StageSeconds, group: Sequence[StageSeconds]) -> str:
    """Return the stage in which *rank* pulls ahead of its *group* the most."""
    normal = stage_baselines(group)
    return max(normal, key=lambda stage: rank.get(stage, 0.0) - normal[stage])

"""Reference accounting of a synchronous step: who is late, in which stage, what it costs in GPUs.

Pure functions on window means, for the ranks that one caller can see. The frontier is
StageFrontier's (arXiv 2606.06751); baselines and limits are those of the recording rules.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rank_probe.stages import STAGES

# Mean seconds a step spends in each stage, `sync` included: one rank, one window.
StageSeconds = Mapping[str, float]

SYNC: Final = "sync"

# A third, not a half: it stays with the healthy ranks while up to two thirds of them are late.
BASELINE_QUANTILE: Final = 1 / 3
# Healthy ranks of one job differ by 2 to 3 % for good.
LATE_RATIO: Final = 0.04
# How many times further from the baseline than its peers usually are.
LATE_SCORE: Final = 5.0
# From the 0.4-quantile of |excess| to one standard deviation, roughly; needs some peers.
SPREAD_QUANTILE: Final = 0.4
SPREAD_SCALE: Final = 1.75
SPREAD_PEERS: Final = 5
# A mean of a few noisy steps moves by its standard error, whoever is healthy.
STANDARD_ERRORS: Final = 1.2


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far the furthest rank is at the end of each stage, counted from the release.

    Entry *j* of each tuple belongs to *stages[j]*. *advance* is never negative and adds up to the
    busy time of the slowest rank, so nothing is charged twice.
    """

    stages: tuple[str, ...]
    seconds: tuple[float, ...]
    advance: tuple[float, ...]
    leader: tuple[int, ...]


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


def busy_seconds(stages: StageSeconds) -> float:
    """Return what a rank needs for itself in a step: everything but the exposed wait."""
    return sum(seconds for stage, seconds in stages.items() if stage != SYNC)


def frontier(ranks: Mapping[int, StageSeconds]) -> Frontier:
    """Return the frontier of *ranks* before the sync; of equally far ranks the lowest leads.

    With d[r,j] the seconds of rank r in stage j and c[r,j] its prefix sum:
    f[j] = max_r c[r,j], advance a[j] = f[j] - f[j-1], leader argmax_r c[r,j].
    """
    stages = tuple(s for s in STAGES if s != SYNC and any(s in rank for rank in ranks.values()))
    reached = dict.fromkeys(sorted(ranks), 0.0)
    seconds, leader = [], []
    for stage in stages:
        reached = {rank: so_far + ranks[rank].get(stage, 0.0) for rank, so_far in reached.items()}
        leader.append(max(reached, key=lambda rank: reached[rank]))
        seconds.append(reached[leader[-1]])
    advance = [after - before for before, after in zip([0.0, *seconds], seconds, strict=False)]
    return Frontier(stages, tuple(seconds), tuple(advance), tuple(leader))


@dataclass(frozen=True, slots=True)
class Charges:
    """Who waited in one step, and on whose account; all in seconds of one GPU each.

    *waited* [rank]: f - busy, how long the rank waits for the slowest one. *unequal* [rank]: the
    part of it that its peer group is lighter than the heaviest. *caused* [rank, stage]: what the
    others waited on this rank's account. The sum of *waited* is that of *unequal* and *caused*.
    *pacer* is the rank that the step waited for, *stage* where it was furthest ahead of its peers.
    """

    waited: Mapping[int, float]
    unequal: Mapping[int, float]
    caused: Mapping[tuple[int, str], float]
    pacer: int
    stage: str


def charge(step: Mapping[int, StageSeconds], peer_groups: Mapping[int, str]) -> Charges:
    """Account for one step: *step* holds the seconds of every rank by stage, the release to sync.

    Unequal groups are charged first: a rank of a group whose baseline is *gap* below the heaviest
    group's would have been *gap* later with equal work, but not later than the heaviest is usual.
    The rest is shared as the Shapley value of the airport game shares a runway (Littlechild and
    Owen 1973): at each moment the ranks that wait are charged in equal parts to those that still
    work. So one late rank is charged alone for as long as all others wait, and what is charged
    adds up. A rank's charge is split over the stages in which it is over its group's baseline.
    """
    busy = {rank: busy_seconds(stages) for rank, stages in step.items()}
    end = max(busy.values())
    groups = split_by_group(busy, peer_groups)
    heaviest, _ = unequal_groups(groups)
    equal = {}
    for group in groups:
        gap = heaviest - baseline(list(group.values()))
        equal |= {rank: max(own, min(own + gap, heaviest)) for rank, own in group.items()}
    caused = {}
    shares = _shared_waits(busy, equal)
    over = {}
    for group in groups:
        normal = stage_baselines([step[rank] for rank in group])
        over |= {rank: _over(step[rank], normal) for rank in group}
    for rank, share in shares.items():
        whole = sum(over[rank].values())
        for stage, seconds in over[rank].items():
            caused[rank, stage] = share * seconds / whole
    pacer = min(rank for rank, own in busy.items() if own == end)
    return Charges(
        waited={rank: end - own for rank, own in busy.items()},
        unequal={rank: equal[rank] - own for rank, own in busy.items()},
        caused=caused,
        pacer=pacer,
        stage=max(over[pacer], key=lambda stage: over[pacer][stage]),
    )


def _shared_waits(busy: Mapping[int, float], equal: Mapping[int, float]) -> dict[int, float]:
    """Return what each rank is charged: the integral up to its *busy* of waiters over workers.

    At a moment x the waiters are the ranks with *equal* <= x, the workers those with *busy* > x.
    """
    moments = sorted({*busy.values(), *equal.values()})
    workers, waiters = sorted(busy.values()), sorted(equal.values())
    charged, so_far = {moments[0]: 0.0}, 0.0
    for since, until in pairwise(moments):
        waiting = bisect_right(waiters, since)
        working = len(workers) - bisect_right(workers, since)
        so_far += (until - since) * waiting / working
        charged[until] = so_far
    return {rank: charged[own] for rank, own in busy.items()}


def _over(stages: StageSeconds, normal: StageSeconds) -> dict[str, float]:
    """Return by how much a rank is over the *normal* of each stage; never empty.

    A rank may be over it in no stage, since baselines are not additive: then where it is closest.
    """
    over = {stage: stages.get(stage, 0.0) - normal[stage] for stage in normal}
    return {stage: seconds for stage, seconds in over.items() if seconds > 0} or {
        max(over, key=lambda stage: over[stage]): 1.0
    }


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


def split_by_group(
    busy: Mapping[int, float], peer_groups: Mapping[int, str]
) -> list[dict[int, float]]:
    """Return the *busy* seconds of each rank, by peer group; a rank without one is in `all`."""
    names = sorted({peer_groups.get(rank, "all") for rank in busy})
    return [
        {rank: busy[rank] for rank in sorted(busy) if peer_groups.get(rank, "all") == name}
        for name in names
    ]


def unequal_groups(groups: Sequence[Mapping[int, float]]) -> tuple[float, float]:
    """Return the heaviest group's baseline, and the GPU-seconds that the others are below it."""
    baselines = [baseline(list(group.values())) for group in groups]
    heaviest = max(baselines)
    below = (heaviest - normal for normal in baselines)
    return heaviest, sum(len(group) * less for group, less in zip(groups, below, strict=True))


def _late_ranks(busy: Mapping[int, float], standard_errors: Mapping[int, float]) -> list[int]:
    """Return the ranks of one peer group that stand out of its spread."""
    normal = baseline(list(busy.values()))
    excess = {rank: seconds / normal - 1 for rank, seconds in busy.items()}
    error = baseline([standard_errors.get(rank, 0.0) for rank in busy]) / normal
    spread = STANDARD_ERRORS * error
    if len(busy) >= SPREAD_PEERS:
        distances = [abs(ratio) for ratio in excess.values()]
        spread = max(spread, SPREAD_SCALE * _quantile(SPREAD_QUANTILE, distances))
    limit = max(LATE_RATIO, LATE_SCORE * spread)
    return [rank for rank, ratio in excess.items() if ratio > limit]


def _late_stage(rank: StageSeconds, group: Sequence[StageSeconds]) -> str:
    """Return the stage in which *rank* pulls ahead of its *group* the most."""
    normal = stage_baselines(group)
    return max(normal, key=lambda stage: rank.get(stage, 0.0) - normal[stage])


def stage_baselines(group: Sequence[StageSeconds]) -> dict[str, float]:
    """Return what is normal in a peer *group* for each stage but sync."""
    return {
        stage: baseline([peer.get(stage, 0.0) for peer in group])
        for stage in STAGES
        if stage != SYNC
    }


def baseline(values: Sequence[float]) -> float:
    """Return what is normal for peers; of two ranks the lower one is."""
    return _quantile(BASELINE_QUANTILE, values) if len(values) > 2 else min(values)


def _quantile(quantile: float, values: Sequence[float]) -> float:
    """Return the same *quantile* as PromQL does: linear between the two nearest values."""
    ordered = sorted(values)
    position = quantile * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

"""Reference accounting of one synchronous step: which ranks caused which waits.

Pure functions. A step is the seconds that each rank spent in each stage, from one release to the
next: local durations, so no clock is compared between machines. The shares are those of the airport
game (Littlechild and Owen 1973). Whole runs, kinds and the what-if are in
rankskew/accounting/run.py; the recording rules and the join are tested against both.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rank_probe.wire.stages import STAGES

# Seconds by stage of one rank, `sync` included: of one step, or the mean of several.
StageSeconds = Mapping[str, float]

SYNC: Final = "sync"

# A third, not a half: it stays with the healthy ranks while up to two thirds of them are late.
BASELINE_QUANTILE: Final = 1 / 3


def busy_seconds(stages: StageSeconds) -> float:
    """Return what a rank needs for itself in a step: everything but the exposed wait."""
    return sum(seconds for stage, seconds in stages.items() if stage != SYNC)


@dataclass(frozen=True, slots=True)
class Charges:
    """The waits of one step and the ranks that caused them; all in seconds of one GPU each.

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
    heaviest = max(baseline(list(group.values())) for group in groups)
    equal: dict[int, float] = {}
    for group in groups:
        gap = heaviest - baseline(list(group.values()))
        equal |= {rank: max(own, min(own + gap, heaviest)) for rank, own in group.items()}
    caused = {}
    shares = _shared_waits(busy, equal)
    over: dict[int, dict[str, float]] = {}
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

    A rank may be over it in no stage, since baselines are not additive: then where it is closest,
    of the stages that it has.
    """
    over = {stage: stages.get(stage, 0.0) - normal[stage] for stage in normal}
    had = [stage for stage in over if stages.get(stage)] or list(over)
    return {stage: seconds for stage, seconds in over.items() if seconds > 0} or {
        max(had, key=lambda stage: over[stage]): 1.0
    }


def split_by_group(
    busy: Mapping[int, float], peer_groups: Mapping[int, str]
) -> list[dict[int, float]]:
    """Return the *busy* seconds of each rank, by peer group; a rank without one is in `all`."""
    names = sorted({peer_groups.get(rank, "all") for rank in busy})
    return [
        {rank: busy[rank] for rank in sorted(busy) if peer_groups.get(rank, "all") == name}
        for name in names
    ]


def stage_baselines(group: Sequence[StageSeconds]) -> dict[str, float]:
    """Return what is normal in a peer *group* for each stage but sync."""
    return {
        stage: baseline([peer.get(stage, 0.0) for peer in group])
        for stage in STAGES
        if stage != SYNC
    }


def baseline(values: Sequence[float]) -> float:
    """Return what is normal for peers; of two ranks the lower one is."""
    return quantile(BASELINE_QUANTILE, values) if len(values) > 2 else min(values)


def quantile(share: float, values: Sequence[float]) -> float:
    """Return the same quantile as PromQL does: linear between the two nearest values."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

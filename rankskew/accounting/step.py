"""Reference accounting of synchronous steps: the ranks that caused each wait, and what-ifs.

Pure functions. A step is the seconds that each rank spent in each stage, from one release to the
next: local durations, so no clock is compared between machines. The shares are those of the airport
game (Littlechild and Owen 1973). The cost of a whole run is that of the ranks named by the caller.
The recording rules and the join are tested against this.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rank_probe.judge.windows import BASELINE_QUANTILE
from rank_probe.wire.stages import STAGES

# Seconds by stage of one rank, `sync` included: of one step, or the mean of several.
StageSeconds = Mapping[str, float]

# The stages of every rank in one step.
Step = Mapping[int, StageSeconds]

SYNC: Final = "sync"


def busy_seconds(stages: StageSeconds) -> float:
    """Return a rank's own time in a step: everything but the exposed wait."""
    return sum(seconds for stage, seconds in stages.items() if stage != SYNC)


@dataclass(frozen=True, slots=True)
class Charges:
    """The waits of one step and the ranks that caused them; all in seconds of one GPU each.

    *waited* [rank]: f - busy, how long the rank waits for the slowest one. *unequal* [rank]: the
    part of that because its peer group is lighter than the heaviest. *caused* [rank, stage]: what
    the others waited for this rank. The sum of *waited* is that of *unequal* and *caused*.
    *pacer* is the rank that the step waited for, *stage* where it was furthest ahead of its peers.
    *longest* is the stage that took the ranks the most of their time.
    """

    waited: Mapping[int, float]
    unequal: Mapping[int, float]
    caused: Mapping[tuple[int, str], float]
    pacer: int
    stage: str
    longest: str


def charge(step: Step, peer_groups: Mapping[int, str]) -> Charges:
    """Account for one step: *step* holds the seconds of every rank by stage, the release to sync.

    Unequal groups are charged first: a rank of a group whose baseline is *gap* below the heaviest
    group's would have been *gap* later with equal work, but no later than the heaviest baseline.
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
    usual = Counter[str]()
    for group in groups:
        normal = stage_baselines([step[rank] for rank in group])
        usual.update({stage: len(group) * seconds for stage, seconds in normal.items()})
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
        longest=max(usual, key=lambda stage: usual[stage]),
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

    Baselines are not additive, so a rank may be over none of them. The result is then the stage, of
    those that it has, in which it comes closest.
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


# ---- Whole runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """What the steps of a job lost to waiting, in seconds of one GPU; over *seconds*, in GPUs.

    *waited*, *unequal* and *caused* are those of Charges, summed over the steps: the sum of
    *waited* is that of *unequal* and *caused*, to rounding. *measured* [rank] is the exposed wait
    as timed, or *waited* where it was not timed; no rank caused what exceeds *waited*. *seconds* is
    the time of all steps, each as long as its longest rank's.
    """

    seconds: float
    waited: Mapping[int, float]
    measured: Mapping[int, float]
    unequal: Mapping[int, float]
    caused: Mapping[tuple[int, str], float]


def account(steps: Iterable[Step], peer_groups: Mapping[int, str]) -> Account:
    """Add up the charges of *steps*, each of which holds the same ranks; see charge().

    Ranks and stages that caused no waiting are left out of what is *caused*.
    """
    waited, measured, unequal = Counter[int](), Counter[int](), Counter[int]()
    caused = Counter[tuple[int, str]]()
    seconds = 0.0
    for step in steps:
        one = charge(step, peer_groups)
        waited.update(one.waited)
        measured.update({rank: stages.get(SYNC, one.waited[rank]) for rank, stages in step.items()})
        unequal.update(one.unequal)
        caused.update({key: share for key, share in one.caused.items() if share})
        seconds += max(sum(stages.values()) for stages in step.values())
    return Account(seconds, waited, measured, unequal, caused)


def kinds(found: Account, named: Collection[int]) -> dict[str, float]:
    """Split the waiting in *found* by kind, given the ranks that were *named* as late.

    In seconds of one GPU. The whole is the measured wait, or the wait for the slowest rank where
    none was measured. `common` is the measured wait beyond the latter; negative if it is shorter.
    """
    persistent = sum(seconds for (rank, _), seconds in found.caused.items() if rank in named)
    return {
        "group": sum(found.unequal.values()),
        "persistent": persistent,
        "rotating": sum(found.caused.values()) - persistent,
        "common": sum(found.measured.values()) - sum(found.waited.values()),
    }


def slowdown(
    steps: Iterable[Step], peer_groups: Mapping[int, str], named: Collection[int]
) -> float:
    """Return how many times longer *steps* took than without the excess of the *named* ranks.

    The what-if of arXiv 2505.05713 on stages instead of single operations: a named rank takes no
    longer than its peer group's baseline, a step lasts until its slowest rank is done and then as
    long as it did (communication unchanged). 1 when nobody is named, or nobody waited for them.
    """
    was = would_be = 0.0
    for step in steps:
        busy = {rank: busy_seconds(stages) for rank, stages in step.items()}
        length = max(sum(stages.values()) for stages in step.values())
        mended = [
            normal if rank in named else own
            for group in split_by_group(busy, peer_groups)
            for normal in [baseline(list(group.values()))]
            for rank, own in group.items()
        ]
        was += length
        would_be += length - max(busy.values()) + max(mended)
    return was / would_be if would_be else 1.0

"""Reference accounting of a run: the charges of its steps, added up, by kind, and as a what-if.

Pure functions over rankskew/accounting/step.py, which accounts for one step. They compute the cost
of the named ranks they are given; they do not name ranks.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass

from rankskew.accounting.step import (
    SYNC,
    StageSeconds,
    baseline,
    busy_seconds,
    charge,
    split_by_group,
)

# The stages of every rank in one step.
Step = Mapping[int, StageSeconds]


@dataclass(frozen=True, slots=True)
class Account:
    """What the steps of a job lost to waiting, in seconds of one GPU; over *seconds*, in GPUs.

    *waited*, *unequal* and *caused* are those of Charges, summed over the steps: the sum of
    *waited* is that of *unequal* and *caused*, to rounding. *measured* [rank] is the exposed wait
    as it was timed, or as in *waited* if it was not; no rank caused the rest of it. *seconds* is
    the time of all steps, each as long as its longest rank's.
    """

    seconds: float
    waited: Mapping[int, float]
    measured: Mapping[int, float]
    unequal: Mapping[int, float]
    caused: Mapping[tuple[int, str], float]


@dataclass(frozen=True, slots=True)
class Kinds:
    """All waiting by kind, in seconds of one GPU, or over the time of all steps in GPUs.

    It is what was measured, and what each rank waited for the slowest where nothing was.
    """

    group: float
    """GPUs that waited for heavier peer groups."""
    persistent: float
    """GPUs that waited for the ranks that are named."""
    rotating: float
    """GPUs that waited for other ranks, a different one each time."""
    common: float
    """GPUs that waited beyond the slowest rank; below 0 if ranks waited less."""

    @property
    def lost(self) -> float:
        """All waiting."""
        return self.group + self.persistent + self.rotating + self.common

    def over(self, seconds: float) -> "Kinds":
        """Return GPU-seconds as the GPUs that waited, a mean over so many *seconds*."""
        return Kinds(*(each / seconds for each in astuple(self)))


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


def kinds(found: Account, named: Collection[int]) -> Kinds:
    """Split the waiting in *found* by kind, given the ranks that were *named* as late."""
    persistent = sum(seconds for (rank, _), seconds in found.caused.items() if rank in named)
    return Kinds(
        group=sum(found.unequal.values()),
        persistent=persistent,
        rotating=sum(seconds for (rank, _), seconds in found.caused.items() if rank not in named),
        common=sum(found.measured[rank] - each for rank, each in found.waited.items()),
    )


def slowdown(
    steps: Iterable[Step], peer_groups: Mapping[int, str], named: Collection[int]
) -> float:
    """Return how many times longer *steps* took than without what the *named* ranks had too much.

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

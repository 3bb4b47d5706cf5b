"""What a job lost, split by kind, rank, stage and cause; the parts add up.

Beside that, what it cost that the whole job was slower than before: its GPUs worked, for longer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rankskew.client.prometheus import Series
from rankskew.report.times import merged, of_points

LATE, ROTATING, GROUP, COMMON, HUNG = "late", "rotating", "group", "common", "hung"
# What each kind is waited for.
WORDS: Final = {
    LATE: "late rank",
    HUNG: "hang",
    ROTATING: "ranks in turn, or not named yet",
    GROUP: "heavier peer groups",
    COMMON: "communication",
}
# As the recording rules name them.
KINDS: Final = {"persistent": LATE, "rotating": ROTATING, "group": GROUP, "common": COMMON}
UNKNOWN: Final = "unknown"
# Seconds of a whole fortnight that are only a rounding error.
NOISE_SECONDS: Final = 0.5

# Rank and stage; then the cause too.
Where = tuple[str, ...]
Why = tuple[str, ...]
Key = TypeVar("Key")


# As long as the judge looks back on the job's own past.
PAST: Final = "30m"


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-seconds lost for one reason; a rank, stage or cause that it does not have is empty."""

    kind: str
    gpu_seconds: float
    rank: str = ""
    stage: str = ""
    cause: str = ""


def integral(found: Iterable[Series], step: float, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the sum of each value for a *step*, by *labels*."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for each in found:
        sums[tuple(each[label] for label in labels)] += step * sum(v for _, v in each.points)
    return sums


def counted(caused: Mapping[Where, float], named: Mapping[Why, float]) -> list[Loss]:
    """Split the GPU-seconds that each rank *caused* in a stage, by counters, into losses.

    While the rank was *named* late, the gauges know the cause; the rest is the loss of steps in
    which it happened to be the slowest. Where the gauges say more than was counted, they are
    scaled down to it.
    """
    by_where: dict[Where, dict[str, float]] = defaultdict(dict)
    for (rank, stage, cause), seconds in named.items():
        by_where[rank, stage][cause] = seconds
    found = []
    for (rank, stage), seconds in caused.items():
        causes = by_where.get((rank, stage), {})
        scale = min(1.0, seconds / total) if (total := sum(causes.values())) else 0.0
        for cause, part in causes.items():
            found.append(Loss(LATE, part * scale, rank, stage, cause or UNKNOWN))
        found.append(Loss(ROTATING, seconds - total * scale, rank, stage))
    return found


def gauged(
    kinds: Mapping[str, float], named: Mapping[Why, float], rotating: Mapping[str, float]
) -> list[Loss]:
    """Return the losses to late ranks and to ranks in turn, without counters.

    *kinds* are totals; ranks that are late but not named have none, and stages likewise.
    """
    found = [
        Loss(LATE, s, rank, stage, cause or UNKNOWN) for (rank, stage, cause), s in named.items()
    ]
    found.append(Loss(LATE, max(0.0, kinds.get(LATE, 0.0) - sum(named.values())), cause=UNKNOWN))
    found += [Loss(ROTATING, seconds, stage=stage) for stage, seconds in rotating.items()]
    found.append(Loss(ROTATING, max(0.0, kinds.get(ROTATING, 0.0) - sum(rotating.values()))))
    return found


def hung(seconds: float, suspects: Mapping[Where, float]) -> list[Loss]:
    """Split the GPU-*seconds* of hangs by how long each of the *suspects* was one."""
    total = sum(suspects.values())
    parts = {where: seconds * share / total for where, share in suspects.items()} if total else {}
    found = [Loss(HUNG, part, rank, stage) for (rank, stage), part in parts.items()]
    return found or [Loss(HUNG, seconds)]


def worth(losses: Iterable[Loss]) -> list[Loss]:
    """Return *losses* without those that are nothing."""
    return [loss for loss in losses if loss.gpu_seconds >= NOISE_SECONDS]


def grouped(losses: Sequence[Loss], key: Callable[[Loss], Key]) -> dict[Key, float]:
    """Return the GPU-seconds of *losses* by *key*, the largest first."""
    found: dict[Key, float] = defaultdict(float)
    for loss in losses:
        found[key(loss)] += loss.gpu_seconds
    return dict(sorted(found.items(), key=lambda each: -each[1]))


# ---- Slower than before -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A time in which *stage* took *ratio* times as long as before, a mean, in ranks of *scope*.

    *gpus* is what that cost the job at each time, every *step_seconds* from *begin* to *end*.
    """

    scope: str
    stage: str
    begin: float
    end: float
    ratio: float
    gpus: Mapping[float, float]
    step_seconds: float

    @property
    def gpu_seconds(self) -> float:
        """Return what all of it cost."""
        return self.step_seconds * sum(self.gpus.values())


def slower_gpus(matchers: str) -> str:
    """Return the GPUs that each change of a job costs, against the pace before, while it steps.

    The judge measures whole steps, so what late ranks cost more than in the last half hour is taken
    off: it is a loss of its own. A job that hangs has none of *persistent*, and no change either.
    """
    late = f'job_kind:rankskew_gpus_lost:sum{{kind="persistent",{matchers}}}'
    return (
        f"clamp_min(max by (cluster, job_id, scope, stage) (rankskew_job_change_gpus{{{matchers}}})"
        f" - on (cluster, job_id) group_left () ({late} - min_over_time({late}[{PAST}])), 0)"
    )


def slowdowns(
    ratios: Sequence[Series],
    onsets: Iterable[Series],
    gpus: Iterable[Series],
    first: float,
    step: float,
    gap_seconds: float,
) -> list[Slowdown]:
    """Return when a job that was seen from *first* on was slower, in order; breaks are bridged.

    The series are by scope and stage, read every *step*. A change is told a minute or two after its
    onset, and until then cost what it did when it was told.
    """
    began, cost = _by_change(onsets), _by_change(gpus)
    found = []
    for key, told in _by_change(ratios).items():
        for begin, end in merged(of_points(told, step), gap_seconds):
            inside = [value for at, value in told.items() if begin <= at < end]
            known = {at: lost for at, lost in cost.get(key, {}).items() if begin <= at < end}
            onset = max(first, min(begin, began.get(key, {}).get(begin, begin)))
            untold = int((begin - onset) / step)
            early = {begin - n * step: known.get(begin, 0.0) for n in range(1, untold + 1)}
            ratio = sum(inside) / len(inside)
            found.append(Slowdown(*key, onset, end, ratio, {**early, **known}, step))
    return sorted(found, key=lambda each: each.begin)


def together(those: Sequence[Slowdown]) -> float:
    """Return the GPU-seconds that *those* cost a job: each is of whole steps, so the largest."""
    most: dict[float, float] = {}
    for each in those:
        for at, lost in each.gpus.items():
            most[at] = max(lost, most.get(at, 0.0))
    return sum(most.values()) * (those[0].step_seconds if those else 0.0)


def _by_change(found: Iterable[Series]) -> dict[tuple[str, str], dict[float, float]]:
    return {(each["scope"], each["stage"]): dict(each.points) for each in found}

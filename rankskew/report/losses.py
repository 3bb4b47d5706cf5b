"""What a job lost in GPU-hours, split by kind, rank, stage and cause; the parts add up.

Beside that, what it cost that the whole job was slower than before: its GPUs worked, for longer.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rankskew.client.prometheus import Series
from rankskew.times import HOUR_SECONDS, iso, merged, of_points

Kind = Literal["late", "rotating", "group", "common", "hung"]
LATE: Final = "late"
ROTATING: Final = "rotating"
GROUP: Final = "group"
COMMON: Final = "common"
HUNG: Final = "hung"
# What is waited for, by kind.
WORDS: Final[Mapping[Kind, str]] = {
    LATE: "late rank",
    HUNG: "hang",
    ROTATING: "ranks in turn, or not named yet",
    GROUP: "heavier peer groups",
    COMMON: "communication",
}
# As the recording rules name what is lost to late ranks; the other kinds have one name.
PERSISTENT: Final = "persistent"
UNKNOWN: Final = "unknown"
# Half a second of a whole fortnight is only a rounding error.
NOISE_HOURS: Final = 0.5 / HOUR_SECONDS
# As long as the judge looks back on the job's own past.
PAST: Final = "30m"

# Values of labels: of rank and stage, and of the cause too; or of one of them.
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the loss."""

    kind: Kind
    """What was waited for: a late rank, ranks in turn, heavier groups, the network, a hang."""
    gpu_hours: float
    """GPU-hours of this part."""
    rank: str | None = None
    """Number of the rank to blame, as text; null if there is none."""
    stage: str | None = None
    """Stage in which it was late or stuck; null if not known."""
    cause: str | None = None
    """Why it was late, as in docs/playbook, or unknown; null for other kinds."""
    dollars: float | None = None
    """US$ of this part; null without a price."""


def integral(found: Iterable[Series], step: float, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the hours times the value of each series, read every *step* seconds, by *labels*."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for each in found:
        hours = step / HOUR_SECONDS * sum(value for _, value in each.points)
        sums[tuple(each[label] for label in labels)] += hours
    return sums


def counted(caused: Mapping[Labels, float], named: Mapping[Labels, float]) -> list[Loss]:
    """Split the GPU-hours that each rank *caused* in a stage, by counters, into losses.

    While the rank was *named* late, the gauges know the cause; the rest is the loss of steps in
    which it happened to be the slowest. Where the gauges say more than was counted, they are
    scaled down to it.
    """
    by_where: dict[Labels, dict[str, float]] = defaultdict(dict)
    for (rank, stage, cause), hours in named.items():
        by_where[rank, stage][cause] = hours
    found = []
    for (rank, stage), hours in caused.items():
        causes = by_where.get((rank, stage), {})
        scale = min(1.0, hours / total) if (total := sum(causes.values())) else 0.0
        for cause, part in causes.items():
            found.append(Loss(LATE, part * scale, rank, stage, cause or UNKNOWN))
        found.append(Loss(ROTATING, hours - total * scale, rank, stage))
    return found


def gauged(
    kinds: Mapping[Labels, float], named: Mapping[Labels, float], rotating: Mapping[Labels, float]
) -> list[Loss]:
    """Return the losses to late ranks and to ranks in turn, without counters.

    *kinds* are totals by the rules' names; ranks that are late but not named have no part of their
    own, and what is *rotating* in no stage likewise.
    """
    late = max(0.0, kinds.get((PERSISTENT,), 0.0) - sum(named.values()))
    in_turn = max(0.0, kinds.get((ROTATING,), 0.0) - sum(rotating.values()))
    return [
        *(Loss(LATE, part, r, s, cause or UNKNOWN) for (r, s, cause), part in named.items()),
        Loss(LATE, late, cause=UNKNOWN),
        *(Loss(ROTATING, part, stage=stage) for (stage,), part in rotating.items()),
        Loss(ROTATING, in_turn),
    ]


def hung(hours: float, suspects: Mapping[Labels, float]) -> list[Loss]:
    """Split the GPU-*hours* of hangs by how long each of the *suspects* was one."""
    total = sum(suspects.values())
    if not total:
        return [Loss(HUNG, hours)]
    return [Loss(HUNG, hours * part / total, r, s) for (r, s), part in suspects.items()]


def worth(losses: Iterable[Loss]) -> list[Loss]:
    """Return *losses* without those that are nothing, the largest first."""
    notable = [loss for loss in losses if loss.gpu_hours >= NOISE_HOURS]
    return sorted(notable, key=lambda loss: -loss.gpu_hours)


# ---- Slower than before -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A time in which the job, or a part of it, was slower than before."""

    scope: str
    """Which ranks were slower: all, a set of them, or a peer group by name."""
    stage: str
    """Stage that took longer; sync is the wait that all ranks have in common."""
    begin: str
    """When it became slower, ISO 8601 in UTC."""
    end: str
    """When it was last slower, ISO 8601 in UTC."""
    seconds: float
    """Seconds from begin to end."""
    ratio: float
    """How many times as long as before the stage took, a mean."""
    gpu_hours: float
    """GPU-hours that the pace before would have saved."""
    dollars: float | None = None
    """US$ of these GPU-hours; null without a price."""


def slower_gpus(matchers: str) -> str:
    """Return the GPUs that each change of a job costs, against the pace before, while it steps.

    The judge measures whole steps, so what late ranks cost more than in the last half hour is taken
    off: it is a loss of its own. A job that hangs has none of *persistent*, and no change either.
    """
    late = f'job_kind:rankskew_gpus_lost:sum{{kind="{PERSISTENT}",{matchers}}}'
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
) -> tuple[list[Slowdown], float]:
    """Return when a job that was seen from *first* on was slower, in order, and the GPU-hours.

    The series are by scope and stage, read every *step*; breaks are bridged. A change is told a
    minute or two after its onset, and until then cost what it did when it was told. Each change is
    of whole steps, so of those at the same time the largest is what they cost the job together.
    """
    began, cost = _by_change(onsets), _by_change(gpus)
    most: dict[float, float] = defaultdict(float)
    found = []
    for key, told in _by_change(ratios).items():
        for begin, end in merged(of_points(told, step), gap_seconds):
            inside = [value for at, value in told.items() if begin <= at < end]
            known = {at: lost for at, lost in cost.get(key, {}).items() if begin <= at < end}
            onset = max(first, min(begin, began.get(key, {}).get(begin, begin)))
            untold = int((begin - onset) / step)
            lost = {begin - n * step: known.get(begin, 0.0) for n in range(1, untold + 1)} | known
            for at, each in lost.items():
                most[at] = max(each, most[at])
            hours = step / HOUR_SECONDS * sum(lost.values())
            ratio = sum(inside) / len(inside)
            found.append(Slowdown(*key, iso(onset), iso(end), end - onset, ratio, hours))
    return sorted(found, key=lambda each: each.begin), step / HOUR_SECONDS * sum(most.values())


def _by_change(found: Iterable[Series]) -> dict[tuple[str, str], dict[float, float]]:
    return {(each["scope"], each["stage"]): dict(each.points) for each in found}

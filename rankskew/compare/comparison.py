"""Compares two sides: what a change did to the steps of a job, and whether that is certain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal, NamedTuple

from rank_probe.judge.verdict import WAIT_KINDS
from rank_probe.wire.stages import STAGES
from rankskew.compare import statistics
from rankskew.compare.statistics import Estimate, Interval, estimate

Verdict = Literal["improved", "no_worse", "worse", "cannot_tell"]
IMPROVED: Final = "improved"
NO_WORSE: Final = "no_worse"
WORSE: Final = "worse"
CANNOT_TELL: Final = "cannot_tell"
EXIT_STATUS: Final[Mapping[Verdict, int]] = {IMPROVED: 0, NO_WORSE: 0, WORSE: 1, CANNOT_TELL: 2}

# The interval ends below this: if the change costs anything, it is less than 2 %.
NO_WORSE_RATIO: Final = 1.02
# Smaller differences between batches are negligible beside the effect of a change.
SAME_BATCH_RATIO: Final = 0.01
# A note is added if rare stages take more than this share of the time, on one side only.
RARE_SHARE: Final = 0.01
# Between 10 and 30 blocks, more gain little and fewer lose much (Schmeiser 1982).
BLOCKS: Final = 20
# With fewer, the variance between them is hardly known.
LEAST_BLOCKS: Final = 15
# With fewer steps, neighbouring blocks would still be correlated.
LEAST_STEPS: Final = 150
# Fewer degrees of freedom are left if the step time drifts from block to block.
LEAST_FREEDOM: Final = 3.0
# A standard error of so small a share of the mean is rounding, or a drift that does not matter.
STEADY_RATIO: Final = 1e-4
# Stages that only some steps have.
RARE_STAGES: Final = ("checkpoint", "eval")

# Totals over consecutive steps, by name; what was not measured is not there. *steps* and their
# *seconds*, the *gpu_seconds* of all ranks, and the seconds of the median rank in each of STAGES.
# GPU-seconds *lost*, in which ranks waited, and those of each of WAIT_KINDS. *tokens* and *samples*
# of all ranks.
Block = Mapping[str, float]
Late = Mapping[tuple[int, str], float | None]


class Quantity(NamedTuple):
    """What is compared: the mean of one total of a block per another, under a *label*."""

    name: str
    label: str
    total: str
    per: str
    unit: Literal["seconds", "per_second", "gpus"]


RATES: Final = ("tokens", "samples")
QUANTITIES: Final = (
    Quantity("step", "step", "seconds", "steps", "seconds"),
    *(Quantity(name, f"{name} a second", name, "seconds", "per_second") for name in RATES),
    Quantity("gpus_lost", "GPUs lost", "lost", "seconds", "gpus"),
    *(Quantity(kind, f"  {kind}", kind, "seconds", "gpus") for kind in WAIT_KINDS),
    *(Quantity(stage, f"{stage}, median rank", stage, "steps", "seconds") for stage in STAGES),
)


# ---- What is compared --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The steps of a side."""

    job_id: str
    """The job whose steps these are."""
    begin: float
    """When these steps begin, Unix time."""
    end: float
    """When these steps end, Unix time."""
    ranks: int
    """How many ranks the job had."""
    steps: float
    """How many steps each rank made."""
    blocks: int
    """How many blocks of steps the intervals are made from."""
    slowdown: float | None
    """Step time over that without the late ranks; null if nobody judged the job."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side; *what* begins sentences, *trouble* says why it cannot be used.

    *late* are the GPUs that waited for each rank that was late, None if not known, by rank and by
    the stage in which it was late for the longest time; None if nobody judged the job.
    """

    what: str
    summary: ComparedSide
    blocks: Sequence[Block]
    late: Late | None = None
    trouble: str | None = None

    @property
    def too_little(self) -> str | None:
        """Why nothing can be concluded from it, in a sentence; None if something can."""
        if self.trouble is not None:
            return self.trouble
        if self.summary.steps < LEAST_STEPS:
            return self._too_few_steps()
        if len(self.blocks) < LEAST_BLOCKS:
            return (
                f"{self.what} has only {len(self.blocks)} readings with steps between them; at "
                f"least {LEAST_BLOCKS} are needed, so compare a period of about "
                f"{LEAST_BLOCKS / len(self.blocks):.1f} times the length."
            )
        known = self.mean("seconds", "steps")
        is_steady = known is not None and known.variance <= (STEADY_RATIO * known.mean) ** 2
        if known is None or (known.freedom < LEAST_FREEDOM and not is_steady):
            return (
                f"The step time changes too slowly during {self.what} to know its mean; compare "
                "a longer or a steadier period."
            )
        return None

    def _too_few_steps(self) -> str:
        """Say how many there are, how many are needed, and how long those take."""
        steps, seconds = self.summary.steps, sum(block["seconds"] for block in self.blocks)
        few = f"only {steps:.0f} step{'s' * (round(steps) != 1)}"
        said = f"{self.what} has {few if steps >= 1 else 'no step'}"
        said += f"; at least {LEAST_STEPS} are needed"
        if steps >= 1 and seconds > 0:
            said += f", which take about {ceil(LEAST_STEPS * seconds / steps / 60)}m"
        return f"{said}."

    def mean(self, total: str, per: str) -> Estimate | None:
        """Return the mean of one total *per* another; None if a block lacks one of them."""
        if not all(total in block and per in block for block in self.blocks):
            return None
        units = [block[per] for block in self.blocks]
        return estimate([block[total] for block in self.blocks], units) if sum(units) > 0 else None


# ---- What is found -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """The mean of a quantity before and after."""

    name: str
    """step, tokens, samples, gpus_lost, a kind of loss, or a stage."""
    unit: str
    """seconds of a step, per_second of the whole job, gpus that do nothing but wait, or gpu_seconds
    of a token or a sample.
    """
    before: float
    """Its mean before the change."""
    after: float
    """Its mean after the change."""
    ratio: Interval | None
    """After over before; null if before may be 0."""
    difference: Interval
    """After less before."""


@dataclass(frozen=True, slots=True)
class LateChange:
    """A rank that was late in a stage on one side, or on both."""

    rank: int
    """Its global rank."""
    stage: str
    """Stage in which it was late."""
    late: Literal["before", "after", "both"]
    """When it was late."""
    gpus_before: float | None
    """GPUs that waited for it before the change, a mean; null if not known, or none did."""
    gpus_after: float | None
    """GPUs that waited for it after the change, a mean; null if not known, or none did."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a change did."""

    verdict: Verdict
    """What the change did to the cost of a step, a token or a sample."""
    why: str | None
    """What keeps the verdict from more, in a sentence; null if the interval decides."""
    before: ComparedSide | None = None
    """The steps before the change; null if the source cannot tell."""
    after: ComparedSide | None = None
    """The steps after the change; null if the source cannot tell."""
    cost: QuantityChange | None = None
    """What the verdict is about: seconds of a step, or GPU-seconds of one of the tokens or samples;
    null if nothing can be concluded.
    """
    notes: Sequence[str] = ()
    """What to keep in mind of the comparison, in sentences."""
    quantities: Sequence[QuantityChange] = ()
    """All that is known of both sides and not 0 throughout, stages of the median rank; empty if
    nothing can be concluded.
    """
    late: Sequence[LateChange] | None = None
    """Ranks late on either side, the costliest first; null if a side was not judged or compared."""


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides; the verdict is CANNOT_TELL, with the reason, if there is too little."""
    sides = before, after
    why = before.too_little or after.too_little
    unlike = None if why else _unlike(sides)
    cost = None if why else _cost(sides, unlike)
    if cost is None:
        why = why or (
            f"{unlike}, so step times are not comparable, and tokens or samples are not counted on "
            "both sides, so throughput is not known; rank_probe.count() counts them."
        )
        return Comparison(CANNOT_TELL, why, before.summary, after.summary)
    changes = (_change(sides, each.name, each.unit, each.total, each.per) for each in QUANTITIES)
    found = {each.name: each for each in changes if each and (each.before or each.after)}
    return Comparison(
        *_verdict(cost.ratio),
        before.summary,
        after.summary,
        cost=cost,
        notes=list(_notes(found, unlike)),
        quantities=list(found.values()),
        late=_late(before, after),
    )


def _verdict(ratio: Interval | None) -> tuple[Verdict, str | None]:
    if ratio is None:
        return CANNOT_TELL, "Step times vary so much that their mean is not known; compare longer."
    if ratio.high < 1:
        return IMPROVED, None
    if ratio.low > 1:
        return WORSE, None
    if ratio.high < NO_WORSE_RATIO:
        return NO_WORSE, None
    return CANNOT_TELL, (
        f"The interval includes both no change and a loss of {NO_WORSE_RATIO - 1:.0%} or more; "
        "compare longer periods."
    )


def _unlike(sides: tuple[Side, Side]) -> str | None:
    """Return why step times are not comparable: another number of ranks, or of tokens a step."""
    before, after = (side.summary.ranks for side in sides)
    if before != after:
        return f"The job had {before} ranks before and {after} after"
    for name in RATES:
        batch = _change(sides, name, "per_step", name, "steps")
        if batch is None or batch.ratio is None:
            continue
        low, high = batch.ratio.low, batch.ratio.high
        if low <= 1 <= high or abs(batch.ratio.value - 1) <= SAME_BATCH_RATIO:
            return None
        return f"A step had {batch.before:,.0f} {name} before and {batch.after:,.0f} after"
    return None


def _cost(sides: tuple[Side, Side], unlike: str | None) -> QuantityChange | None:
    """Return the change of the seconds of a step, or of the GPU-seconds of a token or a sample."""
    if not unlike:
        return _change(sides, "step", "seconds", "seconds", "steps")
    costs = (_change(sides, name, "gpu_seconds", "gpu_seconds", name) for name in RATES)
    return next(filter(None, costs), None)


def _notes(found: Mapping[str, QuantityChange], unlike: str | None) -> Iterator[str]:
    if unlike:
        yield f"{unlike}, so step times are not comparable; what a GPU trains in a second is."
    elif not any(name in found for name in RATES):
        yield "Neither tokens nor samples are counted, so equal batches are taken for granted."
    step = found["step"]
    for rare in (found[stage] for stage in RARE_STAGES if stage in found):
        shares = rare.before / step.before, rare.after / step.after
        if min(shares) == 0 and max(shares) > RARE_SHARE:
            yield (
                f"Only one side has {rare.name}: {shares[0]:.0%} of the time before, "
                f"{shares[1]:.0%} after."
            )


def _change(
    sides: tuple[Side, Side], name: str, unit: str, total: str, per: str
) -> QuantityChange | None:
    """Return the change of the mean of one total *per* another; None if a side lacks one."""
    before, after = (side.mean(total, per) for side in sides)
    if before is None or after is None:
        return None
    ratio, difference = statistics.ratio(after, before), statistics.difference(after, before)
    return QuantityChange(name, unit, before.mean, after.mean, ratio, difference)


def _late(before: Side, after: Side) -> list[LateChange] | None:
    if before.late is None or after.late is None:
        return None
    found = [
        LateChange(
            *place,
            "after" if place not in before.late else "both" if place in after.late else "before",
            before.late.get(place),
            after.late.get(place),
        )
        for place in {**before.late, **after.late}
    ]
    return sorted(found, key=lambda each: -max(each.gpus_before or 0.0, each.gpus_after or 0.0))

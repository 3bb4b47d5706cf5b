"""Compares two sides: what a change did to the steps of a job, and whether that is certain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from rank_probe.judge.verdict import LOST_KINDS, MILD, UNSYNCED
from rank_probe.wire.stages import STAGES
from rankskew.compare import statistics
from rankskew.compare.side import RARE_STAGES, LateRankCost, Reading, Side, StepBlock
from rankskew.compare.statistics import Estimate, Interval

IMPROVED: Final = "improved"
NO_WORSE: Final = "no_worse"
WORSE: Final = "worse"
CANNOT_TELL: Final = "cannot_tell"

# The interval ends below this: if the change costs anything, it is less than 2 %.
NO_WORSE_RATIO: Final = 1.02
# Batches that differ by less are not worth a word beside what a change does.
SAME_BATCH_RATIO: Final = 0.01
# A share of the time that rare stages may have on one side only before a note says so.
RARE_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """The mean of a quantity on both sides; *ratio* is after / before, None if before may be 0."""

    name: str
    before: float
    after: float
    ratio: Interval | None
    difference: Interval


@dataclass(frozen=True, slots=True)
class LateChange:
    """A rank that was late in *stage* on one side or both; None on the side where it was not."""

    rank: int
    stage: str
    before: LateRankCost | None
    after: LateRankCost | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a change did; *verdict* is one of those above, and *why* says what keeps it from more.

    *cost* is what the verdict is about: seconds of a step, or GPU-seconds of a token or sample if
    steps are not comparable; a ratio below 1 is a gain. *without_rare* is a step less checkpoints
    and evaluation, None if there were none. *lost* are GPUs lost, in total and by kind; *stages*
    are seconds per step of the median rank. *late* is None if a side was not judged.
    """

    before: Side
    after: Side
    verdict: str
    why: str | None = None
    cost: QuantityChange | None = None
    notes: Sequence[str] = ()
    step: QuantityChange | None = None
    without_rare: QuantityChange | None = None
    rates: Sequence[QuantityChange] = ()
    lost: Sequence[QuantityChange] = ()
    stages: Sequence[QuantityChange] = ()
    late: Sequence[LateChange] | None = None


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides; the verdict is CANNOT_TELL, with the reason, if there is too little."""
    sides = before, after
    why = before.too_little or after.too_little
    step = None if why else _change("step", sides, SECONDS, STEPS)
    if step is None:
        return Comparison(*sides, CANNOT_TELL, why)
    unlike = _unlike(sides)
    cost = _cost_per_unit(sides) if unlike else step
    if cost is None:
        why = (
            f"{unlike}, so step times are not comparable, and tokens or samples are not counted on "
            "both sides, so throughput is not known; rank_probe.count() counts them."
        )
        return Comparison(*sides, CANNOT_TELL, why)
    verdict, why = _verdict(cost.ratio)
    has_rare = any(
        block.stages.get(stage) for side in sides for block in side.blocks for stage in RARE_STAGES
    )
    return Comparison(
        before=before,
        after=after,
        verdict=verdict,
        why=why,
        cost=cost,
        notes=list(_notes(sides, unlike, step)),
        step=step,
        without_rare=_change("step_without_rare", sides, _without_rare, STEPS)
        if has_rare
        else None,
        rates=_changes(sides, RATES, SECONDS),
        lost=_changes(sides, LOST, SECONDS),
        stages=_changes(sides, STAGE_SECONDS, STEPS),
        late=_late(before, after),
    )


def _verdict(ratio: Interval | None) -> tuple[str, str | None]:
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
    before, after = sides
    if before.ranks != after.ranks:
        return f"The job had {before.ranks} ranks before and {after.ranks} after"
    for batch in _changes(sides, RATES, STEPS):
        ratio = batch.ratio
        if ratio is None:
            continue
        if not ratio.excludes(1.0) or abs(ratio.value - 1) <= SAME_BATCH_RATIO:
            return None
        return f"A step had {batch.before:,.0f} {batch.name} before and {batch.after:,.0f} after"
    return None


def _notes(sides: tuple[Side, Side], unlike: str | None, step: QuantityChange) -> Iterator[str]:
    if unlike:
        yield f"{unlike}, so step times are not comparable; what a GPU trains in a second is."
    elif not _changes(sides, RATES, STEPS):
        yield "Neither tokens nor samples are counted, so equal batches are taken for granted."
    for rare in _changes(sides, {stage: STAGE_SECONDS[stage] for stage in RARE_STAGES}, STEPS):
        shares = rare.before / step.before, rare.after / step.after
        if min(shares) == 0 and max(shares) > RARE_SHARE:
            yield (
                f"Only one side has {rare.name}: {shares[0]:.0%} of the time before, "
                f"{shares[1]:.0%} after."
            )


# ---- Quantities --------------------------------------------------------------------------------


def _without_rare(block: StepBlock) -> float:
    return block.seconds - sum(block.stages.get(stage, 0.0) for stage in RARE_STAGES)


def _gpu_seconds(ranks: int, block: StepBlock) -> float:
    return block.seconds * ranks


def _lost_to(kind: str, block: StepBlock) -> float | None:
    return block.kinds.get(kind)


def _in_stage(stage: str, block: StepBlock) -> float | None:
    # A stage that no step of the block had took no time.
    return block.stages.get(stage, 0.0) if block.stages else None


STEPS: Final[Reading] = attrgetter("steps")
SECONDS: Final[Reading] = attrgetter("seconds")
RATES: Final[Mapping[str, Reading]] = {name: attrgetter(name) for name in ("tokens", "samples")}
LOST: Final[Mapping[str, Reading]] = {
    "total": attrgetter("lost"),
    **{kind: partial(_lost_to, kind) for kind in LOST_KINDS},
}
STAGE_SECONDS: Final[Mapping[str, Reading]] = {stage: partial(_in_stage, stage) for stage in STAGES}


def _changes(
    sides: tuple[Side, Side], quantities: Mapping[str, Reading], unit: Reading
) -> list[QuantityChange]:
    """Return the changes of those *quantities* per *unit* that are known and not 0 throughout."""
    found = [_change(name, sides, amount, unit) for name, amount in quantities.items()]
    return [one for one in found if one is not None and (one.before or one.after)]


def _change(
    name: str, sides: tuple[Side, Side], amount: Reading, unit: Reading
) -> QuantityChange | None:
    """Return the change of the mean *amount* per *unit*; None if a side does not know it."""
    return _between(name, *(side.mean(amount, unit) for side in sides))


def _cost_per_unit(sides: tuple[Side, Side]) -> QuantityChange | None:
    """Return the change of the GPU-seconds that a token takes, or else a sample."""
    for name, amount in RATES.items():
        costs = (side.mean(partial(_gpu_seconds, side.ranks), amount) for side in sides)
        if (found := _between(name, *costs)) is not None:
            return found
    return None


def _between(name: str, before: Estimate | None, after: Estimate | None) -> QuantityChange | None:
    if before is None or after is None:
        return None
    ratio = statistics.ratio(after, before)
    return QuantityChange(
        name, before.mean, after.mean, ratio, statistics.difference(after, before)
    )


# ---- Late ranks --------------------------------------------------------------------------------


def _late(before: Side, after: Side) -> list[LateChange] | None:
    if before.late is None or after.late is None:
        return None
    earlier, later = _by_place(before.late), _by_place(after.late)
    places = sorted(earlier.keys() | later.keys())
    found = [LateChange(*place, earlier.get(place), later.get(place)) for place in places]
    return sorted(found, key=lambda one: -max(_gpus(one.before), _gpus(one.after)))


def _by_place(late: Sequence[LateRankCost]) -> dict[tuple[int, str], LateRankCost]:
    return {(one.rank, one.stage): one for one in late if one.kind not in (MILD, UNSYNCED)}


def _gpus(late: LateRankCost | None) -> float:
    return (late.gpus_lost or 0.0) if late else 0.0

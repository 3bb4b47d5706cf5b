"""Compares two sides: what a change did to the steps of a job, and whether that is certain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.diagnose.compare.changes import (
    LOST,
    RATES,
    STAGE_SECONDS,
    Change,
    change,
    changes,
    cost_per_unit,
    seconds,
    seconds_without_rare,
    steps,
)
from exporter.diagnose.compare.side import RARE_STAGES, LateRank, Side
from rank_probe.verdict import MILD, UNSYNCED

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
class LateChange:
    """A rank that was late in *stage* on one side or both; None on the side where it was not."""

    rank: int
    stage: str
    before: LateRank | None
    after: LateRank | None


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
    cost: Change | None = None
    notes: Sequence[str] = ()
    step: Change | None = None
    without_rare: Change | None = None
    rates: Sequence[Change] = ()
    lost: Sequence[Change] = ()
    stages: Sequence[Change] = ()
    late: Sequence[LateChange] | None = None


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides; the verdict is CANNOT_TELL, with the reason, if there is too little."""
    why = before.too_little or after.too_little
    step = None if why else change("step", before, after, seconds, steps)
    if step is None:
        return Comparison(before, after, CANNOT_TELL, why)
    unlike = _unlike(before, after)
    cost = cost_per_unit(before, after) if unlike else step
    if cost is None:
        return Comparison(
            before,
            after,
            CANNOT_TELL,
            f"{unlike}, so step times are not comparable, and tokens or samples are not counted on "
            "both sides, so throughput is not known; rank_probe.count() counts them.",
        )
    verdict, why = _verdict(cost)
    return Comparison(
        before=before,
        after=after,
        verdict=verdict,
        why=why,
        cost=cost,
        notes=list(_notes(before, after, unlike, step)),
        step=step,
        without_rare=_without_rare(before, after),
        rates=changes(before, after, RATES, seconds),
        lost=changes(before, after, LOST, seconds),
        stages=changes(before, after, STAGE_SECONDS, steps),
        late=_late(before, after),
    )


def _verdict(cost: Change) -> tuple[str, str | None]:
    found = cost.ratio
    if found is None:
        return CANNOT_TELL, "Step times vary so much that their mean is not known; compare longer."
    if found.high < 1:
        return IMPROVED, None
    if found.low > 1:
        return WORSE, None
    if found.high < NO_WORSE_RATIO:
        return NO_WORSE, None
    return CANNOT_TELL, (
        f"The interval includes both no change and a loss of {NO_WORSE_RATIO - 1:.0%} or more; "
        "compare longer periods."
    )


def _unlike(before: Side, after: Side) -> str | None:
    """Return why step times are not comparable: another number of ranks, or of tokens a step."""
    if before.ranks != after.ranks:
        return f"The job had {before.ranks} ranks before and {after.ranks} after"
    for name, amount in RATES.items():
        batch = change(name, before, after, amount, steps)
        if batch is None or batch.ratio is None:
            continue
        if batch.ratio.excludes(1.0) and abs(batch.ratio.value - 1) > SAME_BATCH_RATIO:
            return f"A step had {batch.before:,.0f} {name} before and {batch.after:,.0f} after"
        return None
    return None


def _notes(before: Side, after: Side, unlike: str | None, step: Change) -> Iterator[str]:
    if unlike:
        yield f"{unlike}, so step times are not comparable; what a GPU trains in a second is."
    elif not any(change(name, before, after, RATES[name], steps) for name in RATES):
        yield "Neither tokens nor samples are counted, so equal batches are taken for granted."
    for stage in RARE_STAGES:
        rare = change(stage, before, after, STAGE_SECONDS[stage], steps)
        if rare is None:
            continue
        shares = rare.before / step.before, rare.after / step.after
        if min(shares) == 0 and max(shares) > RARE_SHARE:
            yield (
                f"Only one side has {stage}: {shares[0]:.0%} of the time before, {shares[1]:.0%} "
                "after."
            )


def _without_rare(before: Side, after: Side) -> Change | None:
    blocks = (*before.blocks, *after.blocks)
    if not any(block.stages.get(stage) for block in blocks for stage in RARE_STAGES):
        return None
    return change("step_without_rare", before, after, seconds_without_rare, steps)


# ---- Late ranks --------------------------------------------------------------------------------


def _late(before: Side, after: Side) -> list[LateChange] | None:
    if before.late is None or after.late is None:
        return None
    earlier, later = _by_place(before.late), _by_place(after.late)
    places = sorted(earlier.keys() | later.keys())
    found = [LateChange(*place, earlier.get(place), later.get(place)) for place in places]
    return sorted(found, key=lambda one: -max(_gpus(one.before), _gpus(one.after)))


def _by_place(late: Sequence[LateRank]) -> dict[tuple[int, str], LateRank]:
    return {(one.rank, one.stage): one for one in late if one.kind not in (MILD, UNSYNCED)}


def _gpus(late: LateRank | None) -> float:
    return (late.gpus_lost or 0.0) if late else 0.0

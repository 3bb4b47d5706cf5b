"""Compares two sides: what a change did to the steps of a job, and whether that is certain."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Final, Literal, TypeVar

from rank_probe.judge.verdict import LOST_KINDS, MILD, UNSYNCED
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
# Batches that differ by less are not worth a word beside what a change does.
SAME_BATCH_RATIO: Final = 0.01
# A share of the time that rare stages may have on one side only before a note says so.
RARE_SHARE: Final = 0.01
# Between 10 and 30 blocks, more gain little and fewer lose much (Schmeiser 1982).
BLOCKS: Final = 20
# With fewer, the variance between them is hardly known.
LEAST_BLOCKS: Final = 15
# With fewer, steps that depend on those before them still do so from block to block.
LEAST_STEPS: Final = 150
# Fewer degrees of freedom are left if the step time drifts from block to block.
LEAST_FREEDOM: Final = 3.0
# A standard error of so small a share of the mean is rounding, or a drift that does not matter.
STEADY_RATIO: Final = 1e-4
# Stages that only some steps have.
RARE_STAGES: Final = ("checkpoint", "eval")
# No step ended for so long, and for so many steps: the job stood still.
PAUSE_SECONDS: Final = 60.0
PAUSE_STEPS: Final = 10

Step = TypeVar("Step")


# ---- What is compared --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive *steps* and totals over them; what was not measured is None or lacks its key.

    *seconds* is their length and *stages* are the seconds of the median rank in each stage.
    *lost* are GPU-seconds that ranks waited, and *kinds* the same by kind. *tokens* and *samples*
    are those of all ranks.
    """

    steps: float
    seconds: float
    stages: Mapping[str, float] = field(default_factory=dict)
    lost: float | None = None
    kinds: Mapping[str, float] = field(default_factory=dict)
    tokens: float | None = None
    samples: float | None = None


# What is read of a block, None if it was not measured.
Reading = Callable[[StepBlock], float | None]


@dataclass(frozen=True, slots=True)
class LateRankCost:
    """A rank that was late, and what it cost."""

    rank: int
    """Its global rank."""
    peer_group: str
    """Its peer group, ranks that should do equal work (docs/concepts.md)."""
    instance: str
    """Address of its exporter; in a trace, the name of its node."""
    stage: str
    """Stage in which it was late for the longest time."""
    kind: str
    """How it was late: persistent, pauses, duty or node (docs/concepts.md)."""
    gpus_lost: float | None
    """GPUs that waited for it, a mean of the side; null if not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side; *what* begins a sentence, *trouble* is one on why it is no use.

    *begin* and *end* are Unix times, or seconds of the run in a trace. *late* is None if nobody
    judged the job, *slowdown* how many times longer its steps took than without the late ranks.
    """

    what: str
    job_id: str
    begin: float
    end: float
    ranks: int
    blocks: Sequence[StepBlock]
    late: Sequence[LateRankCost] | None = None
    slowdown: float | None = None
    trouble: str | None = None

    @property
    def steps(self) -> float:
        """How many steps it has."""
        return sum(block.steps for block in self.blocks)

    @property
    def seconds(self) -> float:
        """How long these took."""
        return sum(block.seconds for block in self.blocks)

    @property
    def too_little(self) -> str | None:
        """Why nothing can be concluded from it, in a sentence; None if something can."""
        if self.trouble is not None:
            return self.trouble
        if self.steps < LEAST_STEPS:
            return self._too_few_steps()
        if len(self.blocks) < LEAST_BLOCKS:
            return (
                f"{self.what} has only {len(self.blocks)} readings with steps between them; at "
                f"least {LEAST_BLOCKS} are needed, so compare a period of about "
                f"{LEAST_BLOCKS / len(self.blocks):.1f} times the length."
            )
        known = self.mean(lambda block: block.seconds, lambda block: block.steps)
        is_steady = known is not None and known.variance <= (STEADY_RATIO * known.mean) ** 2
        if known is None or (known.freedom < LEAST_FREEDOM and not is_steady):
            return (
                f"The step time changes too slowly during {self.what} to know its mean; compare "
                "a longer or a steadier period."
            )
        return None

    def _too_few_steps(self) -> str:
        """Say how many there are, how many are needed, and how long those take."""
        few = f"only {self.steps:.0f} step{'s' * (round(self.steps) != 1)}"
        said = f"{self.what} has {few if self.steps >= 1 else 'no step'}"
        said += f"; at least {LEAST_STEPS} are needed"
        if self.steps >= 1 and self.seconds > 0:
            said += f", which take about {ceil(LEAST_STEPS * self.seconds / self.steps / 60)}m"
        return f"{said}."

    def mean(self, amount: Reading, unit: Reading) -> Estimate | None:
        """Return the mean *amount* per *unit*; None if it is not known of each block."""
        amounts, units = _known(map(amount, self.blocks)), _known(map(unit, self.blocks))
        whole = len(amounts) == len(units) == len(self.blocks)
        return estimate(amounts, units) if whole and sum(units) > 0 else None


def in_blocks(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """Return consecutive *steps* in BLOCKS parts of equal length, to one step."""
    count = min(BLOCKS, len(steps))
    borders = [len(steps) * number // count for number in range(count + 1)] if count else []
    return [steps[first:after] for first, after in pairwise(borders)]


def pause_seconds(step_seconds: float) -> float:
    """Return how long no step may end in a job with steps of *step_seconds*."""
    return max(PAUSE_SECONDS, PAUSE_STEPS * step_seconds)


def _known(readings: Iterable[float | None]) -> list[float]:
    return [reading for reading in readings if reading is not None]


# ---- What is found -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The steps of a side."""

    job_id: str
    """The job whose steps these are."""
    begin: float
    """When these steps begin: Unix time, or time_s of a trace."""
    end: float
    """When these steps end: Unix time, or time_s of a trace."""
    ranks: int
    """How many ranks the job had."""
    steps: float
    """How many steps each rank made."""
    blocks: int
    """How many blocks of steps the intervals are made from."""
    slowdown: float | None
    """Step time over that without the late ranks; null if nobody judged the job."""


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """The mean of a quantity before and after."""

    name: str
    """step, step_without_rare, tokens, samples, total, a kind of loss, or a stage."""
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
    before: LateRankCost | None
    """How it was late before the change; null if it was not in that stage."""
    after: LateRankCost | None
    """How it was late after the change; null if it was not in that stage."""


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
    step: QuantityChange | None = None
    """Seconds of a step; null if nothing can be concluded."""
    step_without_rare: QuantityChange | None = None
    """Seconds of a step without checkpoints and evaluation; null if there were none."""
    rates: Sequence[QuantityChange] = ()
    """Tokens and samples of the whole job a second, as far as they are counted."""
    gpus_lost: Sequence[QuantityChange] = ()
    """GPUs that do nothing but wait: the total, and each kind."""
    stages: Sequence[QuantityChange] = ()
    """Seconds a step of the median rank, for each stage that took any."""
    late: Sequence[LateChange] | None = None
    """Ranks late on either side, the costliest first; null if a side was not judged or compared."""


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides; the verdict is CANNOT_TELL, with the reason, if there is too little."""
    sides = before, after
    two = _compared(before), _compared(after)
    why = before.too_little or after.too_little
    step = None if why else _change("step", sides, SECONDS, STEPS)
    if step is None:
        return Comparison(CANNOT_TELL, why, *two)
    unlike = _unlike(sides)
    cost = _cost_per_unit(sides) if unlike else step
    if cost is None:
        why = (
            f"{unlike}, so step times are not comparable, and tokens or samples are not counted on "
            "both sides, so throughput is not known; rank_probe.count() counts them."
        )
        return Comparison(CANNOT_TELL, why, *two)
    has_rare = any(
        block.stages.get(stage) for side in sides for block in side.blocks for stage in RARE_STAGES
    )
    return Comparison(
        *_verdict(cost.ratio),
        *two,
        cost=cost,
        notes=list(_notes(sides, unlike, step)),
        step=step,
        step_without_rare=_change("step_without_rare", sides, _without_rare, STEPS)
        if has_rare
        else None,
        rates=_changes(sides, RATES, SECONDS),
        gpus_lost=_changes(sides, LOST, SECONDS),
        stages=_changes(sides, STAGE_SECONDS, STEPS),
        late=_late(before, after),
    )


def _compared(side: Side) -> ComparedSide:
    return ComparedSide(
        job_id=side.job_id,
        begin=round(side.begin, 3),
        end=round(side.end, 3),
        ranks=side.ranks,
        steps=round(side.steps, 3),
        blocks=len(side.blocks),
        slowdown=side.slowdown,
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

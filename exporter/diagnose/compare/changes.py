"""The quantities that are compared, each with its mean on both sides and what changed in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from exporter.diagnose.compare import statistics
from exporter.diagnose.compare.side import RARE_STAGES, Block, Reading, Side
from exporter.diagnose.compare.statistics import Estimate, Interval
from rank_probe.stages import STAGES
from rank_probe.verdict import LOST_KINDS


@dataclass(frozen=True, slots=True)
class Change:
    """The mean of a quantity on both sides; *ratio* is after / before, None if before may be 0."""

    name: str
    before: float
    after: float
    ratio: Interval | None
    difference: Interval


def change(name: str, before: Side, after: Side, amount: Reading, unit: Reading) -> Change | None:
    """Return the change of the mean *amount* per *unit*; None if a side does not know it."""
    return _between(name, before.mean(amount, unit), after.mean(amount, unit))


def changes(
    before: Side, after: Side, quantities: Mapping[str, Reading], unit: Reading
) -> list[Change]:
    """Return the changes of those *quantities* per *unit* that are known and not 0 throughout."""
    found = [change(name, before, after, amount, unit) for name, amount in quantities.items()]
    return [one for one in found if one is not None and (one.before or one.after)]


def cost_per_unit(before: Side, after: Side) -> Change | None:
    """Return the change of the GPU-seconds that a token takes, or else a sample."""
    for name, amount in RATES.items():
        found = _between(name, _cost(before, amount), _cost(after, amount))
        if found is not None:
            return found
    return None


def steps(block: Block) -> float:
    """Return the unit of what is counted per step."""
    return block.steps


def seconds(block: Block) -> float:
    """Return the length of the steps, and the unit of what is counted per second."""
    return block.seconds


def seconds_without_rare(block: Block) -> float:
    """Return the length of the steps less what the median rank spends in rare stages."""
    return block.seconds - sum(block.stages.get(stage, 0.0) for stage in RARE_STAGES)


def _tokens(block: Block) -> float | None:
    return block.tokens


def _samples(block: Block) -> float | None:
    return block.samples


def _all_lost(block: Block) -> float | None:
    return block.lost


def _lost_to(kind: str, block: Block) -> float | None:
    return block.kinds.get(kind)


def _in_stage(stage: str, block: Block) -> float | None:
    # A stage that no step of the block had took no time.
    return block.stages.get(stage, 0.0) if block.stages else None


RATES: Final[Mapping[str, Reading]] = {"tokens": _tokens, "samples": _samples}
LOST: Final[Mapping[str, Reading]] = {
    "total": _all_lost,
    **{kind: partial(_lost_to, kind) for kind in LOST_KINDS},
}
STAGE_SECONDS: Final[Mapping[str, Reading]] = {stage: partial(_in_stage, stage) for stage in STAGES}


def _cost(side: Side, amount: Reading) -> Estimate | None:
    def gpu_seconds(block: Block) -> float:
        return block.seconds * side.ranks

    return side.mean(gpu_seconds, amount)


def _between(name: str, before: Estimate | None, after: Estimate | None) -> Change | None:
    if before is None or after is None:
        return None
    ratio = statistics.ratio(after, before)
    return Change(name, before.mean, after.mean, ratio, statistics.difference(after, before))

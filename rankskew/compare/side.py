"""One side of a comparison: the blocks of steps before, or after, a change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Final, TypeVar

from rankskew.compare.statistics import Estimate, estimate

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
    """A rank that was late in *stage*, and the mean of the GPUs that it cost, None if unknown."""

    rank: int
    peer_group: str
    instance: str
    stage: str
    kind: str
    gpus_lost: float | None


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

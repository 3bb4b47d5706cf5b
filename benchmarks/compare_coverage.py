"""How honest the intervals of `rankskew compare` are, on step times with a known truth.

Step times are an autoregressive process, so each depends on those before it, and a straggler may
come and go. Both sides are drawn at random; after the change steps take RATIOS times as long.
"""

import random
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.report import write
from rankskew.compare.comparison import WORSE, compare
from rankskew.compare.side import Side, StepBlock, in_blocks

STEPS: Final = (150, 300, 1000)
CORRELATIONS: Final = (0.0, 0.4, 0.8)
RATIOS: Final = (0.8, 1.0, 1.05)
# Standard deviation of a step, and what a late rank adds to it, in mean steps.
NOISE: Final = 0.05
LATE: Final = 0.3
RANKS: Final = 8
# Steps before the first one that counts.
WARMUP: Final = 50


@dataclass(frozen=True)
class Straggler:
    """A rank that is late for *late* steps and then not for *well* steps, on average."""

    name: str
    late: float
    well: float

    @property
    def mean(self) -> float:
        """What it adds to the mean step."""
        return LATE * self.late / (self.late + self.well)


NOBODY: Final = Straggler("none", 0, 1)
STRAGGLERS: Final = (
    NOBODY,
    Straggler("1 step of 10", 1, 9),
    Straggler("20 steps of 100", 20, 80),
)


def step_times(
    draw: random.Random, count: int, correlation: float, straggler: Straggler
) -> list[float]:
    """Return *count* times with the mean 1 and that of the *straggler*; see the module."""
    times, noise = [], 0.0
    change = (1 - correlation**2) ** 0.5
    late = _late(draw, straggler)
    for _ in range(WARMUP + count):
        noise = correlation * noise + change * draw.gauss(0, NOISE)
        times.append(1 + noise + LATE * next(late))
    return times[WARMUP:]


def run(
    steps: int, correlation: float, straggler: Straggler, ratio: float, repeats: int
) -> dict[str, Any]:
    """Return a row: how often the interval holds the truth, and what was concluded."""
    draw = random.Random(f"{steps} {correlation} {straggler.name} {ratio}")
    said = Counter[str]()
    holds, widths = 0, []
    for _ in range(repeats):
        before = step_times(draw, steps, correlation, straggler)
        after = [ratio * time for time in step_times(draw, steps, correlation, straggler)]
        found = compare(_side(before), _side(after))
        if found.cost is None or found.cost.ratio is None:
            said["refused"] += 1
            continue
        said[found.verdict] += 1
        holds += not found.cost.ratio.excludes(ratio)
        widths.append(found.cost.ratio.high - found.cost.ratio.low)
    told = repeats - said["refused"]
    return {
        "steps": steps,
        "correlation": correlation,
        "straggler": straggler.name,
        "true ratio": ratio,
        "repeats": repeats,
        "refused": said["refused"] / repeats,
        "interval holds the truth": holds / told if told else None,
        "told worse": said[WORSE] / repeats,
        "mean width": sum(widths) / told if told else None,
    }


def main() -> None:
    """Measure every case and write the table."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=2000, help="comparisons in each case")
    repeats = options.parse_args().repeats
    write(
        "compare_coverage",
        [
            run(steps, correlation, straggler, ratio, repeats)
            for steps in STEPS
            for straggler in STRAGGLERS
            for correlation in CORRELATIONS
            for ratio in RATIOS
        ],
    )


def _side(times: list[float]) -> Side:
    blocks = [StepBlock(steps=len(those), seconds=sum(those)) for those in in_blocks(times)]
    return Side("It", "simulated", 0.0, sum(times), RANKS, blocks)


def _late(draw: random.Random, straggler: Straggler) -> Iterator[bool]:
    """Yield whether the straggler is late, step by step; each stay is of random length."""
    is_late = draw.random() < straggler.mean / LATE
    while True:
        yield is_late
        stay = straggler.late if is_late else straggler.well
        if straggler is not NOBODY and draw.random() < 1 / stay:
            is_late = not is_late


if __name__ == "__main__":
    main()

"""What two sides with known step times are said to be: as a verdict, in figures and in words."""

import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from rank_probe.wire.stages import STAGES
from rankskew.commands.compare import comparison_document
from rankskew.compare.comparison import (
    BLOCKS,
    ComparedSide,
    Side,
    compare,
)
from rankskew.compare.statistics import Estimate, Interval, difference, estimate, ratio, t_quantile
from rankskew.render import render
from tests.printed import assert_golden


def side(
    step_seconds: float = 0.5,
    noise: float = 0.01,
    steps: int = 400,
    blocks: int = BLOCKS,
    ranks: int = 8,
    seed: int = 1,
    stages: dict[str, float] | None = None,
    lost_gpus: float | None = None,
    tokens_a_step: float | None = None,
    samples_a_step: float | None = None,
    slowdown: float | None = None,
    **more: Any,
) -> Side:
    """Return a side whose blocks vary by *noise*, a share, each in its own way."""
    draw = random.Random(seed)
    of_step = {
        "tokens": tokens_a_step,
        "samples": samples_a_step,
        **(dict.fromkeys(STAGES, 0.0) | stages if stages else {}),
    }
    found = []
    for _ in range(blocks):
        each = steps / blocks
        seconds = each * step_seconds * (1 + draw.gauss(0, noise))
        block = {"steps": each, "seconds": seconds, "gpu_seconds": seconds * ranks}
        block |= {name: each * value for name, value in of_step.items() if value is not None}
        if lost_gpus is not None:
            block |= dict.fromkeys(("lost", "persistent"), lost_gpus * seconds)
        found.append(block)
    known: dict[str, Any] = {"what": "Before (steps 1 to 2)", "late": {}}
    summary = ComparedSide("llama", 0.0, 1.0, ranks, float(steps), blocks, slowdown)
    return Side(summary=summary, blocks=found, **(known | more))


def drifting(one: Side, by: float) -> Side:
    """Return the side with steps that get longer from block to block."""
    blocks = [
        {**block, "seconds": block["seconds"] * (1 + number * by)}
        for number, block in enumerate(one.blocks)
    ]
    return replace(one, blocks=blocks)


LATE = {(3, "data"): 0.2, (6, "data"): 1.6, (7, "data"): None}
MOVED = {(3, "data"): 0.3, (6, "forward"): 0.5}
SAVES = {"stages": {"forward": 0.5, "checkpoint": 0.05}, "tokens_a_step": 1000}
GAIN = (
    side(0.611, noise=0, stages={"data": 0.3}, late={(6, "data"): 1.65}, lost_gpus=2.3),
    side(0.501, noise=0.02, stages={"data": 0.2}, lost_gpus=0.5),
)
STORIES: dict[str, tuple[Side, Side]] = {
    "improved": GAIN,
    "worse": (side(0.5), side(0.52, seed=2)),
    "no worse": (side(0.5), side(0.5, seed=2)),
    # A drift that is mere rounding.
    "steady": (drifting(side(0.5, noise=0), 1e-6), side(0.4, noise=0)),
    "throughput": (
        side(1.5, noise=0, tokens_a_step=1000, slowdown=1.2),
        side(0.5, noise=0, tokens_a_step=2000, slowdown=1.0, stages={"checkpoint": 0.1}),
    ),
    # Twice the GPUs train twice the samples.
    "twice the ranks": (
        side(0.5, samples_a_step=64, ranks=8),
        side(0.5, samples_a_step=128, ranks=16, seed=2),
    ),
    # On both sides it belongs to what is compared.
    "a checkpoint on one side": (
        side(0.5, stages={"forward": 0.5}, tokens_a_step=1000),
        side(0.55, seed=2, **SAVES),
    ),
    "a checkpoint on both sides": (side(0.55, seed=2, **SAVES), side(0.55, seed=3, **SAVES)),
    # One is gone, one is new, one stays; one costs nobody knows what.
    "late ranks": (side(late=LATE), side(late=MOVED, seed=2)),
    # No judge on one side is not the same as nobody late.
    "not judged": (side(late=None), side()),
    "in doubt": (side(0.5, noise=0.2), side(0.5, noise=0.2, seed=2)),
    "few steps": (side(3.0, steps=40), side(3.0, seed=2)),
    # As of a Prometheus that scrapes seldom.
    "few readings": (side(), side(blocks=10)),
    "a restart": (side(), side(trouble="After (x) has a restart.")),
    "a drift": (side(), drifting(side(), 0.1)),
    "nothing to compare": (side(ranks=8), side(ranks=16, seed=2)),
    "noise": (side(0.5, noise=3.0), side(0.5)),
}


def test_stories_are_the_golden_ones() -> None:
    """A verdict is that of the whole interval; none says why, and what would help."""
    texts = {
        name: render(comparison_document(compare(before, after)))
        for name, (before, after) in STORIES.items()
    }
    markdown = render(comparison_document(compare(*GAIN)), markdown=True)
    assert_golden("compare", texts | {"Markdown": markdown})


# ---- The statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "published"), [(3, 3.182), (5, 2.571), (18, 2.101), (120, 1.980), (inf, 1.960)]
)
def test_quantiles_of_t_are_those_of_published_tables(freedom: float, published: float) -> None:
    assert t_quantile(freedom) == pytest.approx(published, abs=0.004)


def test_mean_of_blocks_has_the_variance_of_dependent_ones() -> None:
    """With equal blocks that do not depend on each other it is the textbook s²/k.

    Twenty blocks in pairs have a correlation of 0.05 in the sample, corrected for its bias of
    0.125. The mean counts every unit once.
    """
    apart = estimate([1.0, 4.0, 2.0, 3.0], [1, 1, 1, 1])
    pairs = estimate([1.0, 1.0, 0.0, 0.0] * 5, [1] * 20)

    assert apart.variance == pytest.approx((1.5**2 + 1.5**2 + 0.5**2 + 0.5**2) / 3 / 4)
    assert apart.freedom == pytest.approx(3)
    assert pairs.freedom == pytest.approx(20 * (1 - 0.125) / (1 + 0.125) - 1)
    assert pairs.variance == pytest.approx(5 / 19 / 20 * (1 + 0.125) / (1 - 0.125))
    assert estimate([10.0, 40.0], [10, 20]).mean == pytest.approx(50 / 30)


def test_ratio_is_fiellers_interval() -> None:
    """The ends are the ratios at which Welch's test just rejects.

    If the mean before is not certainly above 0, no ratio is bounded.
    """
    before, after = Estimate(2.0, 0.01, 10), Estimate(1.0, 0.02, 12)
    found = ratio(after, before)

    assert found is not None
    assert found.value == 0.5
    freedom = (0.02 + 0.25 * 0.01) ** 2 / (0.02**2 / 12 + (0.25 * 0.01) ** 2 / 10)
    for end in (found.low, found.high):
        distance = abs(after.mean - end * before.mean)
        spread = (after.variance + end**2 * before.variance) ** 0.5
        assert distance / spread == pytest.approx(t_quantile(freedom))
    assert ratio(Estimate(1.0, 0.1, 9), Estimate(0.1, 0.1, 9)) is None
    assert ratio(Estimate(1.0, 0.0, 9), Estimate(0.0, 0.0, 9)) is None
    # What takes half the time has twice the rate.
    assert Interval(0.5, 0.4, 0.8).inverse == Interval(2.0, 1.25, 2.5)


def test_difference_is_welchs_interval() -> None:
    """Equal variances and sizes give the usual two-sample interval; two constants have none."""
    found = difference(Estimate(3.0, 0.02, 9), Estimate(1.0, 0.02, 9))
    before, after = estimate([2.0] * 20, [1] * 20), estimate([3.0] * 20, [1] * 20)

    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(2.101 * 0.2, abs=0.001)
    assert difference(after, before) == Interval(1.0, 1.0, 1.0)
    assert ratio(after, before) == Interval(1.5, 1.5, 1.5)

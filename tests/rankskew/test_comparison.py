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
    CANNOT_TELL,
    IMPROVED,
    NO_WORSE,
    WORSE,
    ComparedSide,
    Comparison,
    LateChange,
    QuantityChange,
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


def changed(change: QuantityChange | None) -> float:
    assert change is not None
    assert change.ratio is not None
    return change.ratio.value


def drifting(one: Side, by: float) -> Side:
    """Return the side with steps that get longer from block to block."""
    blocks = [
        {**block, "seconds": block["seconds"] * (1 + number * by)}
        for number, block in enumerate(one.blocks)
    ]
    return replace(one, blocks=blocks)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (side(0.5), side(0.4, seed=2), IMPROVED),
        (side(0.5), side(0.52, seed=2), WORSE),
        (side(0.5), side(0.5, seed=2), NO_WORSE),  # A loss of 2 % is ruled out.
        (drifting(side(0.5, noise=0), 1e-6), side(0.4, noise=0), IMPROVED),  # Mere rounding.
    ],
)
def test_verdict_is_that_of_the_whole_interval(before: Side, after: Side, verdict: str) -> None:
    assert compare(before, after).verdict == verdict


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            side(0.5, noise=0.2),
            side(0.5, noise=0.2, seed=2),
            "The interval includes both no change and a loss of 2% or more; compare longer periods",
        ),
        (
            side(3.0, steps=40),
            side(3.0, seed=2),
            "Before (steps 1 to 2) has only 40 steps; at least 150 are needed, which take about 8m",
        ),
        # As of a Prometheus that scrapes seldom.
        (
            side(),
            side(blocks=10),
            "Before (steps 1 to 2) has only 10 readings with steps between them; at least 15 are",
        ),
        (side(), side(trouble="After (x) has a restart."), "After (x) has a restart."),
        (side(), drifting(side(), 0.1), "The step time changes too slowly during"),
        # Without counts of tokens or samples.
        (
            side(ranks=8),
            side(ranks=16, seed=2),
            "The job had 8 ranks before and 16 after, so step times are not comparable, and tokens",
        ),
        (side(0.5, noise=3.0), side(0.5), "Step times vary so much that their mean is not known"),
    ],
)
def test_no_verdict_says_why(before: Side, after: Side, why: str) -> None:
    found = compare(before, after)

    assert found.verdict == CANNOT_TELL
    assert str(found.why).startswith(why)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "name", "value", "note"),
    [
        pytest.param(
            side(0.5, tokens_a_step=1000),
            side(0.8, tokens_a_step=2000, seed=2),
            *(IMPROVED, "tokens", 0.8),
            "A step had 1,000 tokens before and 2,000 after, so step times are not comparable",
            id="steps of twice the tokens take 1.6 times as long",
        ),
        pytest.param(
            side(0.5, samples_a_step=64, ranks=8),
            side(0.5, samples_a_step=128, ranks=16, seed=2),
            *(NO_WORSE, "samples", 1.0),
            "The job had 8 ranks before and 16 after",
            id="twice the GPUs train twice the samples",
        ),
    ],
)
def test_other_steps_are_compared_by_what_a_gpu_trains(
    before: Side, after: Side, verdict: str, name: str, value: float, note: str
) -> None:
    found = compare(before, after)

    assert found.cost is not None
    assert (found.verdict, found.cost.name) == (verdict, name)
    assert changed(found.cost) == pytest.approx(value, abs=0.01)
    assert found.notes[0].startswith(note)


def test_a_checkpoint_on_one_side_is_mentioned() -> None:
    """With its share; on both sides it belongs to what is compared."""
    before = side(0.5, stages={"forward": 0.5}, tokens_a_step=1000)
    after = side(0.55, stages={"forward": 0.5, "checkpoint": 0.05}, tokens_a_step=1000, seed=2)
    found = compare(before, after)

    assert found.notes == ["Only one side has checkpoint: 0% of the time before, 9% after."]
    assert compare(after, replace(after)).notes == []


def test_late_ranks_are_compared_by_rank_and_stage() -> None:
    """One is gone, one is new, one stays; those that only one side has have no other."""
    before = side(late={(3, "data"): 0.2, (6, "data"): 1.6, (7, "data"): None})
    after = side(late={(3, "data"): 0.3, (6, "forward"): 0.5}, seed=2)

    assert compare(before, after).late == [
        LateChange(6, "data", "before", 1.6, None),
        LateChange(6, "forward", "after", None, 0.5),
        LateChange(3, "data", "both", 0.2, 0.3),
        LateChange(7, "data", "before", None, None),
    ]
    # No judge on one side is not the same as nobody late.
    assert compare(side(), side(late=None, seed=2)).late is None


def improved() -> Comparison:
    before = side(0.611, noise=0, stages={"data": 0.3}, late={(6, "data"): 1.65}, lost_gpus=2.3)
    after = side(0.501, noise=0.02, stages={"data": 0.2}, lost_gpus=0.5)
    return compare(before, after)


def test_texts_are_the_golden_ones() -> None:
    """A gain, throughput, no loss, a new and a dearer late rank, no judge, and a refusal."""
    more = side(0.5, noise=0, tokens_a_step=2000, slowdown=1.0, stages={"checkpoint": 0.1})
    moved = {(3, "data"): 0.3, (6, "forward"): 0.5, (7, "data"): None}
    found = {
        "improved": improved(),
        "throughput": compare(side(1.5, noise=0, tokens_a_step=1000, slowdown=1.2), more),
        "no worse": compare(side(0.5), side(0.5, seed=2)),
        "late ranks": compare(side(late={(3, "data"): 0.2}), side(late=moved, seed=2)),
        "not judged": compare(side(late=None), side()),
        "refused": compare(side(trouble="Before has a restart in it."), side()),
    }
    texts = {name: render(comparison_document(one)) for name, one in found.items()}
    markdown = render(comparison_document(improved()), markdown=True)
    assert_golden("compare", texts | {"Markdown": markdown})


# ---- The statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "published"),
    [
        *((3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (18, 2.101), (30, 2.042), (120, 1.980)),
        (inf, 1.95996),
    ],
)
def test_quantiles_of_t_are_those_of_published_tables(freedom: float, published: float) -> None:
    assert t_quantile(freedom) == pytest.approx(published, abs=0.004 if freedom < inf else 1e-5)


def test_variance_of_equal_blocks_is_that_of_their_mean() -> None:
    """With equal blocks that do not depend on each other it is the textbook s²/k.

    The mean counts every unit once.
    """
    found = estimate([1.0, 4.0, 2.0, 3.0], [1, 1, 1, 1])

    assert found.variance == pytest.approx((1.5**2 + 1.5**2 + 0.5**2 + 0.5**2) / 3 / 4)
    assert found.freedom == pytest.approx(3)
    assert estimate([10.0, 40.0], [10, 20]).mean == pytest.approx(50 / 30)


def test_blocks_that_follow_each_other_count_less() -> None:
    """Of a mean that drifts, the variance is larger and fewer degrees of freedom are left."""
    drifting = [float(number) for number in range(20)]
    mixed = random.Random(1).sample(drifting, 20)
    units = [1.0] * 20

    assert estimate(drifting, units).variance > 4 * estimate(mixed, units).variance
    assert estimate(drifting, units).freedom < 3


def test_correlation_of_neighbours_is_corrected_for_its_bias() -> None:
    """Twenty blocks in pairs have a correlation of 0.05 in the sample, and thus of 0.125."""
    found = estimate([1.0, 1.0, 0.0, 0.0] * 5, [1] * 20)

    assert found.freedom == pytest.approx(20 * (1 - 0.125) / (1 + 0.125) - 1)
    assert found.variance == pytest.approx(5 / 19 / 20 * (1 + 0.125) / (1 - 0.125))


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

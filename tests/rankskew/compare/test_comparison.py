"""What two sides with known step times are said to be, as a verdict, in figures and in words."""

import random
from dataclasses import replace
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
from rankskew.render import render
from tests.rankskew.golden import assert_golden


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


def ratio(change: QuantityChange | None) -> float:
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
        pytest.param(side(0.5), side(0.4, seed=2), IMPROVED, id="faster"),
        pytest.param(side(0.5), side(0.52, seed=2), WORSE, id="slower"),
        pytest.param(side(0.5), side(0.5, seed=2), NO_WORSE, id="a loss of 2 % is ruled out"),
        pytest.param(
            drifting(side(0.5, noise=0), 1e-6), side(0.4, noise=0), IMPROVED, id="mere rounding"
        ),
    ],
)
def test_verdict_is_that_of_the_whole_interval(before: Side, after: Side, verdict: str) -> None:
    assert compare(before, after).verdict == verdict


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        pytest.param(
            side(0.5, noise=0.2),
            side(0.5, noise=0.2, seed=2),
            "The interval includes both no change and a loss of 2% or more; compare longer periods",
            id="noise",
        ),
        pytest.param(
            side(3.0, steps=40),
            side(3.0, seed=2),
            "Before (steps 1 to 2) has only 40 steps; at least 150 are needed, which take about 8m",
            id="few steps",
        ),
        pytest.param(
            side(),
            side(blocks=10),
            "Before (steps 1 to 2) has only 10 readings with steps between them; at least 15 are",
            id="few blocks, as of a Prometheus that scrapes seldom",
        ),
        pytest.param(
            side(),
            side(trouble="After (x) has a restart."),
            "After (x) has a restart.",
            id="trouble",
        ),
        pytest.param(
            side(), drifting(side(), 0.1), "The step time changes too slowly during", id="drift"
        ),
        pytest.param(
            side(ranks=8),
            side(ranks=16, seed=2),
            "The job had 8 ranks before and 16 after, so step times are not comparable, and tokens",
            id="other world size without counts",
        ),
        pytest.param(
            side(0.5, noise=3.0),
            side(0.5),
            "Step times vary so much that their mean is not known",
            id="no ratio",
        ),
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
    assert ratio(found.cost) == pytest.approx(value, abs=0.01)
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

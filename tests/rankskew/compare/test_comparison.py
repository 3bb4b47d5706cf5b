from dataclasses import replace

import pytest

from rankskew.compare.comparison import (
    CANNOT_TELL,
    IMPROVED,
    NO_WORSE,
    WORSE,
    Comparison,
    QuantityChange,
    Side,
    compare,
)
from tests.rankskew.compare.sides import late, side


def ratio(change: QuantityChange | None) -> float:
    assert change is not None
    assert change.ratio is not None
    return change.ratio.value


def drifting(one: Side, by: float) -> Side:
    """Return the side with steps that get longer from block to block."""
    blocks = [
        replace(block, seconds=block.seconds * (1 + number * by))
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


def test_other_batches_are_compared_by_what_a_gpu_trains() -> None:
    """Steps of twice the tokens that take 1.6 times as long are a gain."""
    found = compare(side(0.5, tokens_a_step=1000), side(0.8, tokens_a_step=2000, seed=2))

    assert found.cost is not None
    assert (found.verdict, found.cost.name) == (IMPROVED, "tokens")
    assert ratio(found.cost) == pytest.approx(0.8, abs=0.01)
    assert found.notes[0].startswith("A step had 1,000 tokens before and 2,000 after, so step time")


def test_other_world_sizes_are_compared_by_what_a_gpu_trains() -> None:
    """Twice the GPUs that train twice the samples in the same time are no worse."""
    before = side(0.5, samples_a_step=64, ranks=8)
    found = compare(before, side(0.5, samples_a_step=128, ranks=16, seed=2))

    assert found.cost is not None
    assert (found.verdict, found.cost.name) == (NO_WORSE, "samples")


def test_unknown_batches_are_mentioned() -> None:
    """Without counts the same batch is an assumption, and the report says so."""
    assert compare(side(), side(seed=2)).notes == [
        "Neither tokens nor samples are counted, so equal batches are taken for granted."
    ]


def test_a_checkpoint_on_one_side_is_mentioned_and_taken_out() -> None:
    """Its share is said, and the steps are also compared without it; on both sides it belongs."""
    before = side(0.5, stages={"forward": 0.5}, tokens_a_step=1000)
    after = side(0.55, stages={"forward": 0.5, "checkpoint": 0.05}, tokens_a_step=1000, seed=2)
    found = compare(before, after)

    assert found.notes == ["Only one side has checkpoint: 0% of the time before, 9% after."]
    assert ratio(found.step_without_rare) == pytest.approx(1.0, abs=0.01)
    assert compare(after, replace(after)).notes == []


def changes(found: Comparison) -> list[tuple[str, float, float]]:
    return [(one.name, round(one.before, 6), round(one.after, 6)) for one in found.stages]


def test_losses_and_stages_are_compared_one_by_one() -> None:
    """The difference is in GPUs, since either side may have none."""
    before = side(lost_gpus=2.0, stages={"data": 0.1, "forward": 0.2})
    found = compare(before, side(lost_gpus=0.5, stages={"data": 0.1, "forward": 0.3}, seed=2))

    lost = [(one.name, round(one.difference.value, 3)) for one in found.gpus_lost]
    assert lost == [("total", -1.5), ("persistent", -1.5)]
    assert changes(found) == [("data", 0.1, 0.1), ("forward", 0.2, 0.3)]


def test_late_ranks_are_compared_by_rank_and_stage() -> None:
    """One is gone, one is new, one stays; those that are only a little slow are left out."""
    before = side(late=[late(6, 1.6), late(3, 0.2), late(5, 0.1, kind="mild")])
    after = side(late=[late(3, 0.3), late(6, 0.5, stage="forward")], seed=2)

    assert [(c.rank, c.stage, c.before, c.after) for c in compare(before, after).late or ()] == [
        (6, "data", late(6, 1.6), None),
        (6, "forward", None, late(6, 0.5, stage="forward")),
        (3, "data", late(3, 0.2), late(3, 0.3)),
    ]
    # No judge on one side is not the same as nobody late.
    assert compare(side(), side(late=None, seed=2)).late is None

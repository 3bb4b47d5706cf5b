import pytest

from rankskew.compare.comparison import (
    CANNOT_TELL,
    IMPROVED,
    NO_WORSE,
    WORSE,
    compare,
)
from tests.rankskew.compare.sides import late, side


def test_faster_steps_are_an_improvement() -> None:
    """The whole interval of the ratio is below 1."""
    found = compare(side(0.5), side(0.4, seed=2))

    assert found.verdict == IMPROVED
    assert found.cost is not None
    assert found.cost.ratio is not None
    assert found.cost.ratio.value == pytest.approx(0.8, abs=0.01)
    assert found.cost.ratio.high < 0.82


def test_slower_steps_are_worse() -> None:
    """The whole interval of the ratio is above 1."""
    assert compare(side(0.5), side(0.52, seed=2)).verdict == WORSE


def test_steps_as_long_as_before_are_no_worse() -> None:
    """The interval has 1 in it and rules a loss of 2 % out."""
    assert compare(side(0.5), side(0.5, seed=2)).verdict == NO_WORSE


def test_noise_that_may_hide_a_loss_is_no_verdict() -> None:
    """An interval that has both 1 and 1.02 in it tells nothing."""
    found = compare(side(0.5, noise=0.2), side(0.5, noise=0.2, seed=2))

    assert found.verdict == CANNOT_TELL
    assert found.why == (
        "The interval includes both no change and a loss of 2% or more; compare longer periods."
    )


def test_too_few_steps_are_refused_with_the_time_that_enough_take() -> None:
    """The sentence says how many steps there are, how many are needed, and how long they take."""
    found = compare(side(3.0, steps=40), side(3.0, seed=2))

    assert found.verdict == CANNOT_TELL
    assert found.cost is None
    assert found.why == (
        "Before (steps 1 to 2) has only 40 steps; at least 150 are needed, which take about 8m."
    )


def test_too_few_blocks_are_refused() -> None:
    """A Prometheus that scrapes too seldom gives few blocks, whatever the steps."""
    found = compare(side(), side(blocks=10))

    assert found.verdict == CANNOT_TELL
    assert found.why == (
        "Before (steps 1 to 2) has only 10 readings with steps between them; at least 15 are "
        "needed, so compare a period of about 1.5 times the length."
    )


def test_a_side_with_trouble_is_refused_in_its_words() -> None:
    """A restart or a hang on either side is said, and nothing is concluded."""
    found = compare(side(), side(trouble="After (x) has a restart in it."))

    assert (found.verdict, found.why) == (CANNOT_TELL, "After (x) has a restart in it.")


def test_a_step_time_that_drifts_is_refused() -> None:
    """From a trend nobody knows the mean."""
    drifting = side()
    blocks = [
        type(block)(block.steps, block.seconds * (1 + number / 10))
        for number, block in enumerate(drifting.blocks)
    ]
    found = compare(side(blocks=20, noise=0.01), type(drifting)("After", "llama", 0, 1, 8, blocks))

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert "changes too slowly during After" in found.why


def test_a_drift_that_does_not_matter_is_no_drift() -> None:
    """Steps that differ by rounding only are as steady as can be."""
    steady = side(0.5, noise=0)
    blocks = [
        type(block)(block.steps, block.seconds * (1 + number * 1e-6))
        for number, block in enumerate(steady.blocks)
    ]
    found = compare(type(steady)("Before", "llama", 0, 1, 8, blocks), side(0.4, noise=0))

    assert found.verdict == IMPROVED


def test_other_batches_are_compared_by_what_a_gpu_trains() -> None:
    """Steps of twice the tokens that take 1.6 times as long are a gain."""
    found = compare(side(0.5, tokens_a_step=1000), side(0.8, tokens_a_step=2000, seed=2))

    assert found.verdict == IMPROVED
    assert found.cost is not None
    assert found.cost.name == "tokens"
    assert found.cost.ratio is not None
    assert found.cost.ratio.value == pytest.approx(0.8, abs=0.01)
    assert found.notes[0] == (
        "A step had 1,000 tokens before and 2,000 after, so step times are not comparable; what a "
        "GPU trains in a second is."
    )


def test_other_world_sizes_are_compared_by_what_a_gpu_trains() -> None:
    """Twice the GPUs that train twice the samples in the same time are no worse."""
    before = side(0.5, samples_a_step=64, ranks=8)
    after = side(0.5, samples_a_step=128, ranks=16, seed=2)
    found = compare(before, after)

    assert found.verdict == NO_WORSE
    assert found.cost is not None
    assert found.cost.name == "samples"


def test_other_world_sizes_without_counts_are_refused() -> None:
    """Neither step times nor throughput can be compared then."""
    found = compare(side(ranks=8), side(ranks=16, seed=2))

    assert found.verdict == CANNOT_TELL
    assert found.why is not None
    assert found.why.startswith("The job had 8 ranks before and 16 after, so step times")


def test_unknown_batches_are_mentioned() -> None:
    """Without counts the same batch is an assumption, and the report says so."""
    assert compare(side(), side(seed=2)).notes == [
        "Neither tokens nor samples are counted, so equal batches are taken for granted."
    ]


def test_a_checkpoint_on_one_side_is_mentioned_and_taken_out() -> None:
    """Its share is said, and the steps are also compared without it."""
    before = side(0.5, stages={"forward": 0.5}, tokens_a_step=1000)
    after = side(0.55, stages={"forward": 0.5, "checkpoint": 0.05}, tokens_a_step=1000, seed=2)
    found = compare(before, after)

    assert found.notes == ["Only one side has checkpoint: 0% of the time before, 9% after."]
    assert found.without_rare is not None
    assert found.without_rare.ratio is not None
    assert found.without_rare.ratio.value == pytest.approx(1.0, abs=0.01)


def test_checkpoints_on_both_sides_need_no_note() -> None:
    """They belong to the steps of either side."""
    stages = {"forward": 0.45, "checkpoint": 0.05}
    both = [side(0.5, stages=stages, tokens_a_step=1000, seed=seed) for seed in (1, 2)]

    assert compare(*both).notes == []


def test_gpus_lost_are_compared_in_total_and_by_kind() -> None:
    """The difference is in GPUs, since either side may have none."""
    found = compare(side(lost_gpus=2.0), side(lost_gpus=0.5, seed=2))

    assert [(one.name, round(one.difference.value, 3)) for one in found.lost] == [
        ("total", -1.5),
        ("persistent", -1.5),
    ]


def test_stages_are_compared_one_by_one() -> None:
    """A change of the work that all ranks share shows in its stage."""
    found = compare(
        side(stages={"data": 0.1, "forward": 0.2}), side(stages={"data": 0.1, "forward": 0.3})
    )

    assert [(one.name, round(one.before, 6), round(one.after, 6)) for one in found.stages] == [
        ("data", 0.1, 0.1),
        ("forward", 0.2, 0.3),
    ]


def test_late_ranks_are_compared_by_rank_and_stage() -> None:
    """One is gone, one is new, one stays; those that are only a little slow are left out."""
    before = side(late=[late(6, 1.6), late(3, 0.2), late(5, 0.1, kind="mild")])
    after = side(late=[late(3, 0.3), late(6, 0.5, stage="forward")], seed=2)
    found = compare(before, after).late

    assert found is not None
    assert [(one.rank, one.stage, one.before, one.after) for one in found] == [
        (6, "data", late(6, 1.6), None),
        (6, "forward", None, late(6, 0.5, stage="forward")),
        (3, "data", late(3, 0.2), late(3, 0.3)),
    ]


def test_late_ranks_of_a_job_that_was_not_judged_are_unknown() -> None:
    """No judge on one side is not the same as nobody late."""
    assert compare(side(), side(late=None, seed=2)).late is None

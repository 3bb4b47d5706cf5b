"""Tests of the blocks of steps that a rank reports without a join."""

import pytest

from rank_probe.report.blocks import LEAST_STEPS, Blocks
from tests.rank_probe.measure.test_steps import Loop


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_a_block_has_the_same_steps_however_many_are_read_at_once(at_once: int) -> None:
    """Of the steps 17 to 32, not those before and after, which read for longer."""
    loop = Loop()
    blocks = Blocks(loop.steps)
    blocks.snapshot_fields()
    for step in range(1, 2 * LEAST_STEPS + 4):
        is_inside = LEAST_STEPS < step <= 2 * LEAST_STEPS
        loop.step(data=2_000 if is_inside else 2_010)
        if step % at_once == 0:
            blocks.snapshot_fields()

    said = blocks.snapshot_fields()
    assert said["block_steps"] == LEAST_STEPS
    assert said["block_seconds"]["data"] == pytest.approx(2.0)

"""Tests of how sure it is that one rank is late in one window."""

import math

import pytest

from rank_probe.judge.evidence import WindowEvidence
from rank_probe.judge.windows import LEAST_STEPS, Mark, Standing, Window, WindowGroup


def evidence(steps: int) -> WindowEvidence:
    """A rank that was late in each of the last *steps*, and now and then before."""
    standing = Standing(
        rank=1,
        busy=1.5,
        excess=0.5,
        variance=0.0001,
        caused=0.5,
        stages=(),
        before=0.1,
        variance_before=0.04,
    )
    group = WindowGroup(
        name="all",
        ranks=4,
        baseline=1.0,
        stages=(),
        spread=0.0,
        variance=0.0001,
        standing=(standing,),
    )
    window = Window(
        begin=Mark(0, 0.0, None),
        steps=steps,
        elapsed=60.0 * steps,
        seconds=60.0 * steps,
        longest=1.5,
        median=1.0,
        sync=1.0,
        waited=1.0,
        unequal=0.0,
        caused=(),
        groups=(group,),
        steps_before=2 * steps,
    )
    return WindowEvidence(window, group, standing)


def test_few_steps_may_be_late_by_chance_if_others_were() -> None:
    """So they count with the noise before them; twenty are enough to show their own."""
    few, enough = evidence(6), evidence(LEAST_STEPS)

    assert few.error == pytest.approx(0.2 / math.sqrt(6))
    assert few.level_score() < 1 > few.rise_score()
    assert enough.error == pytest.approx(0.01 / math.sqrt(LEAST_STEPS))
    assert enough.level_score() > 1 < enough.rise_score()

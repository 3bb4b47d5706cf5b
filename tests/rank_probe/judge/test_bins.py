"""How much the past of a group varies, and what is usual there."""

import math
from random import Random
from statistics import fmean

import pytest

from rank_probe.judge.bins import FEWEST_STRETCHES, deviation_of, middle_mean


def test_middle_mean_forgets_outliers_and_uses_the_rest() -> None:
    assert middle_mean([5.0]) == 5.0
    assert middle_mean([1.0, 2.0]) == 1.5
    assert middle_mean([2.0, 90.0, -70.0, 4.0]) == 3.0
    assert middle_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 900.0]) == 4.5


@pytest.mark.parametrize("count", [3, 6, 12])
def test_deviation_of_stretches_is_seldom_too_small_and_does_not_depend_on_how_they_are_cut(
    count: int,
) -> None:
    """Of independent noise it is known: the root of how many there are in a stretch."""
    ratios, jumps = [], []
    for seed in range(50):
        draw = Random(seed)
        times = [draw.gauss(1, 0.01) for _ in range(count * FEWEST_STRETCHES + 30)]
        found = [deviation_of(times[first:], count) for first in range(count)]
        ratios.append(found[0] / (0.01 / math.sqrt(count)))
        jumps.append(max(found) / min(found))

    assert min(ratios) > 0.8
    assert 1.05 < fmean(ratios) < 1.3
    assert fmean(jumps) < 1.1


def test_deviation_of_few_stretches_is_a_cautious_guess() -> None:
    for seed in range(20):
        draw = Random(seed)
        times = [draw.gauss(1, 0.01) for _ in range(6 * FEWEST_STRETCHES - 1)]

        assert deviation_of(times, 6) > 1.5 * 0.01 / math.sqrt(6)


def test_drift_of_the_past_counts() -> None:
    """Stretches differ by more than their own noise if the noise lasts for some bins."""
    draw, level, times = Random(1), 1.0, []
    for _ in range(96):
        level = 1 + 0.9 * (level - 1) + draw.gauss(0, 0.01)
        times.append(level)

    assert deviation_of(times, 6) > 2 * 0.023 / math.sqrt(6)

import random
from math import inf

import pytest

from rankskew.compare.statistics import Estimate, Interval, difference, estimate, ratio, t_quantile


@pytest.mark.parametrize(
    ("freedom", "published"),
    [
        *((3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (18, 2.101), (30, 2.042), (120, 1.980)),
        (inf, 1.95996),
    ],
)
def test_quantiles_of_t_are_those_of_published_tables(freedom: float, published: float) -> None:
    assert t_quantile(freedom) == pytest.approx(published, abs=0.004 if freedom < inf else 1e-5)


def test_mean_counts_every_unit_once() -> None:
    assert estimate([10.0, 40.0], [10, 20]).mean == pytest.approx(50 / 30)


def test_variance_of_equal_blocks_is_that_of_their_mean() -> None:
    """With equal blocks that do not depend on each other it is the textbook s²/k."""
    found = estimate([1.0, 4.0, 2.0, 3.0], [1, 1, 1, 1])

    assert found.variance == pytest.approx((1.5**2 + 1.5**2 + 0.5**2 + 0.5**2) / 3 / 4)
    assert found.freedom == pytest.approx(3)


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
    """The ends are the ratios at which Welch's test just rejects."""
    before, after = Estimate(2.0, 0.01, 10), Estimate(1.0, 0.02, 12)
    found = ratio(after, before)

    assert found is not None
    assert found.value == 0.5
    freedom = (0.02 + 0.25 * 0.01) ** 2 / (0.02**2 / 12 + (0.25 * 0.01) ** 2 / 10)
    for end in (found.low, found.high):
        distance = abs(after.mean - end * before.mean)
        spread = (after.variance + end**2 * before.variance) ** 0.5
        assert distance / spread == pytest.approx(t_quantile(freedom))


def test_ratio_to_what_may_be_nothing_is_unknown() -> None:
    """If the mean before is not certainly above 0, no ratio is bounded."""
    assert ratio(Estimate(1.0, 0.1, 9), Estimate(0.1, 0.1, 9)) is None
    assert ratio(Estimate(1.0, 0.0, 9), Estimate(0.0, 0.0, 9)) is None


def test_difference_is_welchs_interval() -> None:
    """Equal variances and sizes give the usual two-sample interval."""
    found = difference(Estimate(3.0, 0.02, 9), Estimate(1.0, 0.02, 9))

    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(2.101 * 0.2, abs=0.001)


def test_what_never_varies_is_certain() -> None:
    """Two constants have a difference and a ratio without width."""
    before, after = estimate([2.0] * 20, [1] * 20), estimate([3.0] * 20, [1] * 20)

    assert difference(after, before) == Interval(1.0, 1.0, 1.0)
    assert ratio(after, before) == Interval(1.5, 1.5, 1.5)


def test_inverse_swaps_the_ends() -> None:
    """What takes half the time has twice the rate."""
    assert Interval(0.5, 0.4, 0.8).inverse == Interval(2.0, 1.25, 2.5)

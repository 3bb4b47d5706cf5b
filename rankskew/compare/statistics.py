"""Confidence intervals for the means of step times, which depend on those before them.

Steps are put into blocks, one after the other, and the means of blocks are hardly correlated
(non-overlapping batch means; Law, Simulation Modeling and Analysis, 5th edition, 2015, section
9.5.3). What correlation remains makes the variance larger here, never smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt
from typing import Final

# Of the normal distribution, for intervals that hold the true value in 95 % of cases.
NORMAL_QUANTILE: Final = 1.959963984540054
# The correction for correlation is itself an estimate; beyond this it would be arbitrary.
MOST_CORRELATION: Final = 0.9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A *mean*, the *variance* of that mean, and the degrees of *freedom* of that variance."""

    mean: float
    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    """Best estimate of the ratio or the difference."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""

    @property
    def inverse(self) -> "Interval":
        """The interval of 1 / value; for values above 0."""
        return Interval(1 / self.value, 1 / self.high, 1 / self.low if self.low else inf)


def estimate(amounts: Sequence[float], units: Sequence[float]) -> Estimate:
    """Return the mean amount per unit from the *amounts* and *units*, such as steps, of blocks.

    Blocks may have different numbers of units, so the mean is a ratio of sums, and its variance is
    that of a ratio estimator: var = s² / (k ū²), where s² is the variance of a block's amount less
    mean times units (Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4). It is divided
    by (1 - r) / (1 + r), with r the correlation of neighbouring blocks, as for an autoregressive
    process (Bayley and Hammersley 1946); the degrees of freedom are those of as many fewer blocks.
    """
    count = len(amounts)
    mean = sum(amounts) / sum(units)
    errors = [amount - mean * unit for amount, unit in zip(amounts, units, strict=True)]
    variance = sum(error**2 for error in errors) / (count - 1) * count / sum(units) ** 2
    correlation = _correlation(errors)
    kept = (1 - correlation) / (1 + correlation)
    return Estimate(mean, variance / kept, max(count * kept - 1, 1.0))


def ratio(after: Estimate, before: Estimate) -> Interval | None:
    """Return the interval of *after* / *before*; None if *before* may be 0.

    It holds each ratio that Welch's test does not reject (Fieller 1954): the roots q of
    (after - q before)² = t² (var after + q² var before).
    """
    if before.mean <= 0:
        return None
    value = after.mean / before.mean
    t = t_quantile(_freedom(after.variance, after.freedom, value**2 * before.variance, before))
    square = before.mean**2 - t**2 * before.variance
    if square <= 0:
        return None
    middle = before.mean * after.mean
    least = after.mean**2 - t**2 * after.variance
    root = sqrt(max(middle**2 - square * least, 0.0))
    return Interval(value, (middle - root) / square, (middle + root) / square)


def difference(after: Estimate, before: Estimate) -> Interval:
    """Return Welch's interval (1947) of *after* - *before*."""
    value = after.mean - before.mean
    t = t_quantile(_freedom(after.variance, after.freedom, before.variance, before))
    half = t * sqrt(after.variance + before.variance)
    return Interval(value, value - half, value + half)


def t_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t; within 0.004 from 3 degrees of *freedom* on.

    An expansion in 1 / *freedom* (Abramowitz and Stegun 1964, 26.7.5).
    """
    x = NORMAL_QUANTILE
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _freedom(own: float, own_freedom: float, other: float, before: Estimate) -> float:
    """Return the degrees of freedom of the sum of two variances (Satterthwaite 1946)."""
    below = own**2 / own_freedom + other**2 / before.freedom
    return (own + other) ** 2 / below if below else inf


def _correlation(errors: Sequence[float]) -> float:
    """Return the correlation of neighbours, 0 if it is negative.

    The usual estimate is low by about (1 + 4 r) / k (Marriott and Pope 1954).
    """
    count, squares = len(errors), sum(error**2 for error in errors)
    if not squares or count < 5:
        return 0.0
    found = sum(a * b for a, b in pairwise(errors)) / squares
    return min(max((found + 1 / count) / (1 - 4 / count), 0.0), MOST_CORRELATION)

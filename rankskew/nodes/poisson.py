"""Exact intervals and tests for counts.

F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28, 1936.
"""

import math
from collections.abc import Callable
from typing import Final

BISECTIONS: Final = 60


def at_least(count: int, mean: float) -> float:
    """Return the probability of *count* events or more where *mean* are expected."""
    if count <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    return max(0.0, 1.0 - sum(_poisson(each, mean) for each in range(count)))


def interval(count: int, error: float = 0.05) -> tuple[float, float]:
    """Return the means of which none is refuted by *count* events, at *error* on both sides."""
    low = 0.0
    if count:
        low = _root(lambda mean: at_least(count, mean) - error / 2, count)
    high = _root(lambda mean: error / 2 - (1 - at_least(count + 1, mean)), 2 * count + 20)
    return low, high


def at_most_before(before: int, count: int, share: float) -> float:
    """Return the probability of *before* or fewer of *count* events in that *share* of the use."""
    return sum(
        math.comb(count, each) * share**each * (1 - share) ** (count - each)
        for each in range(before + 1)
    )


def _poisson(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def _root(rises: Callable[[float], float], most: float) -> float:
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return (low + high) / 2

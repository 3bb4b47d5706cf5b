"""A rise counts if neither a rank's own past nor its peers explain it."""

import math
import random

import pytest

from rank_probe.judge.rises import GroupSample, Rise, beyond_since, known_median, risen

LEAST = {8: 0.11, 16: 0.09, 32: 0.07}


def samples(ranks: list[list[float]]) -> list[GroupSample]:
    """Return one sample a second, given the values of each rank."""
    return [
        GroupSample(float(at), at + 1.0, at, list(values))
        for at, values in enumerate(zip(*ranks, strict=True))
    ]


def noisy(count: int, seed: int, noise: float = 0.02) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(1.0, noise) for _ in range(count)]


def found(first: list[float], *others: list[float]) -> Rise | None:
    peers = others or tuple(noisy(len(first), seed) for seed in range(1, 6))
    return risen(0, samples([first, *peers]), LEAST)


def test_rise_of_the_last_samples_is_found() -> None:
    values = noisy(60, 0)
    now = [*values[:50], *(each + 0.15 for each in values[50:])]
    rise = found(now)

    assert rise is not None
    assert (rise.level, rise.more) == pytest.approx((1.0, 0.15), abs=0.02)
    assert rise.more > rise.needed
    assert found(values) is None


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1.0 + 0.15 * (at // 10 % 2) for at in range(60)], id="it always wandered"),
        pytest.param([*[1.0] * 55, 1.9, 1.9, 1.0, 1.0, 1.0], id="a hiccup"),
        pytest.param([*[1.0] * 10, *[1.3] * 8], id="no past"),
        pytest.param([*[1.0] * 50, *[1.05] * 10], id="too little for so few"),
    ],
)
def test_what_is_no_rise(values: list[float]) -> None:
    assert found(values) is None


def test_rise_of_most_ranks_is_none_of_one() -> None:
    """Where the peers rise as far, differently, one that rises does not stand out."""
    rank = [*[1.0] * 50, *[1.2] * 10]
    peers = [[*[1.0] * 50, *[1.0 + 0.06 * n] * 10] for n in range(5)]

    assert found(rank, *peers) is None
    assert found(rank, *[[1.0] * 60] * 5) is not None


def test_slow_stretches_are_no_past() -> None:
    """A rank that was slow before is compared with what it needed otherwise."""
    values = [*[1.0] * 30, *[math.nan] * 20, *[1.0] * 10, *[1.2] * 8]
    rise = found(values, *[[1.0] * 68] * 5)

    assert rise is not None
    assert rise.level == 1.0
    assert math.isnan(known_median([math.nan]))


def test_split_is_where_most_lies_beyond() -> None:
    assert beyond_since([-1, -1, 1, -0.5, 1, 1]) == 2
    assert beyond_since([-1.0, -1.0]) == 1

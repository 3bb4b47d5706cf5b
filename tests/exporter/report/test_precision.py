"""Precision is a share with an honest interval."""

import pytest

from exporter.report.precision import precision


@pytest.mark.parametrize(
    ("right", "wrong", "low", "high"),
    [
        # R: prop.test(9, 10, correct = FALSE) and so on.
        (9, 1, 0.5958, 0.9821),
        (0, 10, 0.0, 0.2775),
        (10, 0, 0.7225, 1.0),
        (1, 0, 0.2065, 1.0),
        (45, 5, 0.7864, 0.9565),
    ],
)
def test_interval_is_wilson(right: int, wrong: int, low: float, high: float) -> None:
    """It stays within 0 and 1 and is not a point when all are right."""
    found = precision(["yes"] * right + ["no"] * wrong + ["unsure", None, None])

    assert found.ratio == right / (right + wrong)
    assert found.interval is not None
    assert list(found.interval) == [pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4)]
    assert (found.unsure, found.unjudged) == (1, 2)


def test_nobody_has_judged() -> None:
    """Then there is no precision, not 0 %."""
    found = precision([None, "unsure"])

    assert (found.ratio, found.interval) == (None, None)

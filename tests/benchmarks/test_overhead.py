"""The figures of the overhead benchmark can be true."""

import random

import pytest

from benchmarks import report
from benchmarks.overhead.arms import (
    Training,
    automatic,
    automatic_at_root,
    bare,
    batches,
    manual,
    probe,
)
from benchmarks.overhead.blocks import BARE, Cost, measure
from benchmarks.overhead.loops import ARMS, PLAIN
from rank_probe import api


def test_figure_is_the_difference_to_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down steadily does not change a figure, and none share a bare block."""
    speed = iter(range(100))

    def block(arm: object, *_: object) -> Cost:
        added = 0 if arm is bare else 7
        return Cost(100.0 + next(speed) + added, 50.0)

    monkeypatch.setattr("benchmarks.overhead.blocks.block", block)
    arms = {name: arm for name, arm in ARMS.items() if arm is not bare}
    found = measure(PLAIN, arms, steps=1, blocks=3, order=random.Random(1))

    of_tools = [cost for name, costs in found.items() if name != BARE for cost in costs]
    assert of_tools == [Cost(7.0, 0.0)] * 3 * len(arms)
    assert next(speed) == len(arms) + 3 * (2 * len(arms) + 1)


def test_probe_sees_the_steps_that_it_is_charged_for() -> None:
    """An arm of the probe counts every step of its block, else its price is of something else."""
    for arm in (automatic, automatic_at_root, manual):
        with arm(Training()) as train:
            train(batches(20))
            assert api._probe is not None
            assert api._probe.timeline.steps.totals().steps in (19, 20)


def test_probe_that_is_off_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK_PROBE=0 in the environment ends the benchmark, instead of a figure near zero."""
    monkeypatch.setenv("RANK_PROBE", "0")
    with pytest.raises(RuntimeError, match="RANK_PROBE=0"), probe(automatic=True):
        pass


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The ranks of the two ends, from the usual table of the sign test.
    [(5, None, None), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61), (2000, 956, 1045)],
)
def test_interval_of_a_median(count: int, low: int | None, high: int | None) -> None:
    """The interval's ends are the sorted values that a fair coin leaves outside in 5 % of cases."""
    values = [float(number) for number in range(1, count + 1)]
    random.Random(1).shuffle(values)

    found = report.median_interval(values)
    assert found == {"median": (count + 1) / 2, "95 % from": low, "95 % to": high}

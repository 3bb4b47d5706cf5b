"""Tests of what a rank's own past, and its peers', say of an excess."""

import random
from itertools import accumulate
from unittest.mock import Mock

import pytest

from benchmarks.accuracy.false_names import Told, correlated, nodes_drift, told
from rank_probe.judge.wandering import LateSpell, strays, usual
from rank_probe.judge.windows import Mark

STEPS = 400
MARKS = [Mark(step, float(step), None) for step in range(STEPS + 1)]


def path(draw: random.Random, deviation: float, lasts: int = 1, mean: float = 0.0) -> list[float]:
    """Return the sums of an excess that is drawn anew every *lasts* steps."""
    drawn = [mean + draw.gauss(0, deviation) for _ in range(STEPS // lasts)]
    return [0.0, *accumulate(each for each in drawn for _ in range(lasts))]


@pytest.mark.parametrize(("lasts", "deviation"), [(1, 0.25), (8, 0.5**0.5)])
def test_deviation_is_that_of_means_not_of_steps(lasts: int, deviation: float) -> None:
    """Sixteen steps vary a quarter as much as one, unless eight in a row are alike."""
    draw = random.Random(3)
    paths = [path(draw, 1.0, lasts, mean=5.0 * (rank == 0)) for rank in range(8)]
    found = usual(MARKS, paths, MARKS[-1], 16)

    assert found is not None
    assert found.excess == pytest.approx(5.0, abs=0.3)
    assert found.deviation == pytest.approx(deviation, rel=0.2)


def test_one_wild_peer_makes_no_noise_of_the_others() -> None:
    """But a rank that is wilder than its peers has its own."""
    draw = random.Random(3)
    paths = [path(draw, 10.0), *(path(draw, 1.0) for _ in range(7))]
    wild, tame = usual(MARKS, paths, MARKS[-1], 16), usual(MARKS, paths[::-1], MARKS[-1], 16)

    assert wild is not None
    assert tame is not None
    assert wild.deviation > 4 * tame.deviation


def test_only_a_past_that_is_long_enough_counts() -> None:
    """What is judged now is not in it, and two stretches show nothing."""
    draw = random.Random(3)
    quiet = path(draw, 0.01)[: STEPS // 2]
    paths = [[*quiet, *(quiet[-1] + at for at in range(STEPS // 2 + 1))], path(draw, 0.01)]

    found = usual(MARKS, paths, MARKS[STEPS // 2 - 1], 16)
    assert found is not None
    assert found.deviation < 0.01
    assert usual(MARKS, paths, MARKS[40], 16) is None


@pytest.mark.parametrize(("of_peers", "has_strayed"), [(0.1, False), (3.0, True)])
def test_rank_that_has_been_late_for_long_is_compared_with_its_peers(
    of_peers: float, has_strayed: bool
) -> None:
    """Its own past before that is too short, and what came since is what is judged."""
    draw = random.Random(3)
    paths = [path(draw, of_peers, mean=3.0 * (rank == 0)) for rank in range(8)]
    reduction = Mock(groups=dict.fromkeys(range(8), "all"), path=lambda rank, _: paths[rank])
    late = LateSpell(0, 3.0, 16, begin=MARKS[-2], onset=MARKS[0])

    assert strays(reduction, MARKS, late) is has_strayed


@pytest.mark.parametrize("step_seconds", [1.0, 12.0])
def test_noise_that_lasts_names_nobody(step_seconds: float) -> None:
    """Two per cent for ten steps at a time are named a dozen times, by the noise of steps alone."""
    assert told(correlated, step_seconds, hours=step_seconds, seed=1) == Told()


def test_node_that_has_drifted_before_is_not_named_for_it() -> None:
    """Each node is 1 % off for half an hour at a time; then its ranks stray together."""
    assert told(nodes_drift, 60.0, hours=6, seed=3) == Told()

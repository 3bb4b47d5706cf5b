"""The excess of a late rank is what it needs more than its peers, by stage."""

import math

import pytest

from exporter.causes.excess import excess_of
from exporter.causes.model import Lateness, Quantiles
from rank_probe.judge.verdict import PERSISTENT

LATE = Lateness("data", PERSISTENT, 0.25, {"data": 0.6, "forward": 0.2})
PEERS = {
    "data_seconds": Quantiles(0.02, 0.3, 0.4),
    "forward_seconds": Quantiles(0.1, 0.11, 0.12),
}


def test_it_is_the_time_over_that_of_the_better_third() -> None:
    """More than half of the peers may be late too. A stage that takes less does not make up."""
    found = excess_of(LATE, {"data_seconds": 0.2, "forward_seconds": 0.09}, PEERS)

    assert found.more == {"data": pytest.approx(0.18)}
    assert found.total == pytest.approx(0.18)
    assert found.step == pytest.approx(0.29)
    assert found.in_seconds


def test_step_is_as_long_as_was_measured() -> None:
    """With the wait for others, which its own stages do not have."""
    figures = {"data_seconds": 0.2, "forward_seconds": 0.1}

    assert excess_of(LATE, {**figures, "step_seconds": 0.5}, PEERS).step == 0.5
    assert excess_of(LATE, {**figures, "step_seconds": 0.1}, PEERS).step == pytest.approx(0.3)


def test_stage_that_no_peer_has_is_its_alone() -> None:
    """One that some of them have is not."""
    figures = {"data_seconds": 0.02, "eval_seconds": 0.1, "checkpoint_seconds": 0.1}
    peers = {**PEERS, "checkpoint_seconds": Quantiles(0.0, 0.0, 0.1)}
    found = excess_of(LATE, figures, peers)

    assert found.more == {"eval": pytest.approx(0.1), "checkpoint": pytest.approx(0.1)}
    assert found.alone == {"eval"}


@pytest.mark.parametrize("peers", [{}, {"data_seconds": Quantiles(0.0, 0.0, 0.0)}])
def test_without_peers_the_judge_knows(peers: dict[str, Quantiles]) -> None:
    """A fifth of its time is excess if it takes a quarter more; the cost says in which stages."""
    found = excess_of(LATE, {"data_seconds": 0.3, "forward_seconds": 0.2}, peers)

    assert found.more == {"data": pytest.approx(0.075), "forward": pytest.approx(0.025)}
    assert found.alone == frozenset()


def test_rank_that_is_no_slower_by_its_own_times_is_late_as_the_judge_says() -> None:
    """Its peers' figures may be of another minute."""
    found = excess_of(LATE, {"data_seconds": 0.02, "forward_seconds": 0.1}, PEERS)

    assert found.total == pytest.approx(0.12 * 0.2)


def test_without_any_times_its_step_is_one() -> None:
    """Shares need no seconds."""
    found = excess_of(LATE, {}, {})

    assert found.more == {"data": pytest.approx(0.15), "forward": pytest.approx(0.05)}
    assert found.own == {"data": pytest.approx(0.75), "forward": pytest.approx(0.25)}
    assert not found.in_seconds


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_cost_that_makes_no_sense_leaves_the_stage(ratio: float) -> None:
    """A rank that is called late has an excess, in the stage that is named."""
    late = Lateness("backward", PERSISTENT, ratio, {"data": math.nan, "eval": -1.0})
    found = excess_of(late, {}, {})

    assert list(found.more) == ["backward"]
    assert found.total == pytest.approx(0.03 / 1.03)

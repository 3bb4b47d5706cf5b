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
SOME = {**PEERS, "checkpoint_seconds": Quantiles(0.0, 0.0, 0.1)}
NOTHING = {"data_seconds": Quantiles(0.0, 0.0, 0.0)}
JUDGED = {"data": 0.075, "forward": 0.025}


@pytest.mark.parametrize(
    ("own", "peers", "more", "step", "alone"),
    [
        # Over the better third: most peers may be late too. Less in a stage does not make up.
        ({"data": 0.2, "forward": 0.09}, PEERS, {"data": 0.18}, 0.29, set()),
        # A step is as long as was measured, with the wait for others.
        ({"data": 0.2, "forward": 0.1, "step": 0.5}, PEERS, {"data": 0.18}, 0.5, set()),
        ({"data": 0.2, "forward": 0.1, "step": 0.1}, PEERS, {"data": 0.18}, 0.3, set()),
        # A stage that no peer has is its alone; one that some of them have is not.
        (
            {"data": 0.02, "eval": 0.1, "checkpoint": 0.1},
            SOME,
            {"eval": 0.1, "checkpoint": 0.1},
            0.22,
            {"eval"},
        ),
        # Without peers a fifth of its time is excess if it takes a quarter more: so says the judge.
        ({"data": 0.3, "forward": 0.2}, {}, JUDGED, 0.5, set()),
        ({"data": 0.3, "forward": 0.2}, NOTHING, JUDGED, 0.5, set()),
        # So is a rank late that is no slower by its own times: its peers' may be of another minute.
        (
            {"data": 0.02, "forward": 0.1},
            PEERS,
            {"data": 0.75 * 0.12 * 0.2, "forward": 0.25 * 0.12 * 0.2},
            0.12,
            set(),
        ),
    ],
)
def test_it_is_the_time_beyond_the_peers_or_else_what_the_judge_knows(
    own: dict[str, float],
    peers: dict[str, Quantiles],
    more: dict[str, float],
    step: float,
    alone: set[str],
) -> None:
    found = excess_of(LATE, {f"{stage}_seconds": each for stage, each in own.items()}, peers)

    assert found.more == pytest.approx(more)
    assert found.total == pytest.approx(sum(more.values()))
    assert found.step == pytest.approx(step)
    assert found.alone == alone
    assert found.in_seconds


def test_without_any_times_its_step_is_one() -> None:
    """Shares need no seconds."""
    found = excess_of(LATE, {}, {})

    assert found.more == pytest.approx({"data": 0.15, "forward": 0.05})
    assert found.own == pytest.approx({"data": 0.75, "forward": 0.25})
    assert not found.in_seconds


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_cost_that_makes_no_sense_leaves_the_stage(ratio: float) -> None:
    """A rank that is called late has an excess, in the stage that is named."""
    late = Lateness("backward", PERSISTENT, ratio, {"data": math.nan, "eval": -1.0})

    assert excess_of(late, {}, {}).more == {"backward": pytest.approx(0.03 / 1.03)}

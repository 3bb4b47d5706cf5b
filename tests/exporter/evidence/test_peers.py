"""What a late rank's peers have: by the join, and on this node."""

import pytest

from exporter.causes.model import Quantiles
from exporter.evidence.peers import peers_of, quantiles_of
from tests.exporter.snapshots import snapshot


def test_rank_without_a_join_and_alone_on_its_node_has_no_peers() -> None:
    """Nothing is known, and nothing is made up."""
    assert peers_of(snapshot(), []) == {}


def test_join_comes_before_the_node() -> None:
    """The whole job says more than the few ranks here; a figure that it lacks is of the node."""
    late = snapshot(peer_figures={"sm_clock_hertz": [1.0, 2.0, 3.0]})
    here = [{"sm_clock_hertz": 9.0, "gc_ratio": 0.5}]

    assert peers_of(late, here) == {
        "sm_clock_hertz": Quantiles(1.0, 2.0, 3.0),
        "gc_ratio": Quantiles(0.5, 0.5, 0.5),
    }


def test_quantiles_are_the_thirds_and_the_middle() -> None:
    """Between two values they are in proportion, as numpy's and those of the join are."""
    figures = [{"clock": each} for each in (40.0, 10.0, 30.0, 20.0)]
    found = quantiles_of(figures)["clock"]

    assert found == pytest.approx((20.0, 25.0, 30.0))
    assert quantiles_of(figures[:2])["clock"] == pytest.approx((20.0, 25.0, 30.0))


def test_peer_without_a_figure_does_not_count_for_it() -> None:
    """A GPU that cannot say its clock leaves those of the others."""
    found = quantiles_of([{"clock": 5.0, "power": 7.0}, {"power": 9.0}])

    assert found["clock"] == (5.0, 5.0, 5.0)
    assert found["power"].median == 8.0

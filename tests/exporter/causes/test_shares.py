"""The ways in which a figure or a state accounts for an excess."""

import math
from collections.abc import Mapping

import pytest

from exporter.causes.excess import stage_figure
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from exporter.causes.row import CauseRow, Certainty
from exporter.causes.shares import (
    Share,
    has_less,
    has_more,
    has_stage_alone,
    is_in_state,
    is_in_state_like_peers,
    more_work,
    slower,
    unless,
    waits,
)
from rank_probe.judge.verdict import PERSISTENT
from tests.exporter.causes.planted import LINE, at, case_in, evidence, lateness, peers

FIGURE = "gc_ratio"


def row(
    share: Share, stages: tuple[str, ...], healthy: float | None = None, figure: str = ""
) -> CauseRow:
    return CauseRow(
        cause="c",
        certainty=Certainty.AMOUNT,
        figure=figure,
        stages=stages,
        states=frozenset({"running"}),
        share=share,
        says="",
        first_action="",
        healthy=healthy,
    )


def accounted(
    share: Share,
    own: float | None,
    peers: float | None,
    *,
    healthy: float | None = None,
    more: Mapping[str, float] | None = None,
    states: tuple[ThreadState, ...] = (),
) -> float:
    """Return the share of a rank's excess: 300 ms in its stages, of which 100 are too much.

    In data it takes as much as its peers, 100 ms; a step takes 400.
    """
    figures = {"forward_seconds": 0.2, "backward_seconds": 0.1, "data_seconds": 0.1, **(more or {})}
    usual = {
        stage_figure(stage): Quantiles(seconds, seconds + 1, seconds + 2)
        for stage, seconds in (("forward", 0.14), ("backward", 0.06), ("data", 0.1))
    }
    if peers is not None:
        usual[FIGURE] = Quantiles(peers, peers, peers)
    if own is not None:
        figures[FIGURE] = own
    late = Lateness("forward", PERSISTENT, 0.3, {})
    case = case_in(late, Evidence(figures, states), usual)
    return share(row(share, ("forward", "backward"), healthy, FIGURE), case)


WAITS, SLOWER, MORE_WORK = waits(0.05), slower(0.02), more_work(0.02)
HAS_MORE, HAS_LESS = has_more(1, at_least=3), has_less(0.5, at_most=0.05)


@pytest.mark.parametrize(
    ("share", "own", "peers", "expected"),
    [
        # A fifth of a step of 400 ms, more than its peers, is 80 of 100 ms.
        (WAITS, 0.22, 0.02, 0.8),
        (WAITS, 0.2, 0.2, 0.0),
        (WAITS, 0.055, 0.01, 0.0),
        (WAITS, 0.2, None, 0.0),
        (WAITS, None, 0.0, 0.0),
        # No number is no evidence.
        (WAITS, math.nan, 0.0, 0.0),
        (WAITS, 0.5, math.nan, 0.0),
        # A fifth of the speed is missing in 300 ms: without that they are 240.
        (SLOWER, 80, 100, 0.6),
        (SLOWER, 50, 100, 1.0),
        (SLOWER, 100, 80, 0.0),
        (SLOWER, 50, None, 0.0),
        (SLOWER, 0, 100, 1.0),
        # A fifth of its work is more than its peers'.
        (MORE_WORK, 125, 100, 0.6),
        (MORE_WORK, 200, 100, 1.0),
        (MORE_WORK, 5, 0, 0.0),
        (MORE_WORK, 5, None, 0.0),
        # A fact may cost all of it, if it is more than its peers', and much.
        (HAS_MORE, 5, 0, 1.0),
        (HAS_MORE, 5, 4.5, 0.0),
        (HAS_MORE, 2.9, 0, 0.0),
        (HAS_MORE, 5, None, 0.0),
        # And so may a lack, if it has less than its peers, and little.
        (HAS_LESS, 0.04, 1, 1.0),
        (HAS_LESS, 0.06, 1, 0.0),
        (HAS_LESS, 0.04, 0.08, 0.0),
        (HAS_LESS, 0.04, None, 0.0),
    ],
)
def test_figure_accounts_for_a_share(
    share: Share, own: float | None, peers: float | None, expected: float
) -> None:
    """Of the excess, by how much it differs from the peers' figure."""
    assert accounted(share, own, peers) == pytest.approx(expected)


def test_wait_without_peers_is_compared_with_a_healthy_rank() -> None:
    assert accounted(WAITS, 0.2, None, healthy=0.0) == pytest.approx(0.8)
    assert accounted(WAITS, 0.2, 0.2, healthy=0.0) == 0


def test_figure_accounts_for_no_more_than_the_states_allow() -> None:
    """A thread that sleeps does not wait for a CPU, and is not delayed by a fact."""
    mostly = (ThreadState("forward", "sleep", 1.0), ThreadState("backward", "sleep", 0.8))
    half = (ThreadState("forward", "sleep", 0.5), ThreadState("backward", "sleep", 0.5))

    assert accounted(WAITS, 0.9, 0.02, states=mostly) == pytest.approx(0.2)
    assert accounted(has_more(1), 5, 0, states=half) == pytest.approx(0.5)


def test_better_figure_replaces_a_worse_one() -> None:
    """If it is known of both, the rank and its peers."""
    unknown = unless("h2d_seconds", has_more(1))

    assert accounted(unless("data_seconds", has_more(1)), 5, 0) == 0
    assert accounted(unknown, 5, 0) == 1
    assert accounted(unknown, 5, 0, more={"h2d_seconds": 0.0}) == 1


def test_state_accounts_for_its_time_up_to_the_excess() -> None:
    """150 of 200 ms are more than the excess there, which is 60 of 100."""
    runs = (ThreadState("forward", "running", 0.75),)

    assert accounted(is_in_state, None, None, states=runs) == pytest.approx(0.6)
    assert accounted(is_in_state_like_peers, None, None, states=runs) == pytest.approx(0.6 * 0.3)
    assert accounted(is_in_state, None, None) == 0


@pytest.mark.parametrize(("is_known", "share"), [(True, 0.5), (False, 0.0)])
def test_stage_that_peers_do_not_have_is_its_own_time(is_known: bool, share: float) -> None:
    """As much of the excess as is in it."""
    usual = {"forward_seconds": Quantiles(0.1, 0.1, 0.1)} if is_known else {}
    own = Evidence({"forward_seconds": 0.2, "eval_seconds": 0.1})
    case = case_in(Lateness("eval", PERSISTENT, 0.3, {}), own, usual)

    assert has_stage_alone(row(has_stage_alone, ("eval",)), case) == pytest.approx(share)


@pytest.mark.parametrize(
    ("states", "share"),
    [
        # 70 of 140 ms: its peers may sleep for 40, and the excess is 100.
        ({"sleep": 0.5}, 0.3),
        ({"sleep": 0.25}, 0.0),
        # 126 ms: 14 ms are not sleep, so that 86 of the excess are.
        ({"sleep": 0.9}, 0.86),
        ({"sleep": 1.0}, 1.0),
        # Rounded shares, or those of two moments, cannot explain more than there is.
        ({"sleep": 1.0, "running": 1.0}, 0.3),
        ({"sleep": math.nan, "running": -1.0}, 0.0),
    ],
)
def test_only_what_exceeds_all_of_its_peers_time_is_certain(
    states: dict[str, float], share: float
) -> None:
    """If it does nothing else than sleep, the excess is sleep all the same."""
    late, said = lateness({"data": 0.2}), evidence({"data": 0.2}, {}, at("data", LINE, **states))
    found = case_in(late, said, peers())
    certain = found.spent_for_certain(("data",), frozenset({"sleep"}))

    assert found.share(certain) == pytest.approx(share, abs=0.03)


def test_place_is_that_which_costs_most() -> None:
    """And its time is all of that in the stage."""
    states = at("data", "b", sleep=0.3) + at("data", "a", sleep=0.4) + at("forward", "c", sleep=1.0)
    extra = {"data": 0.2, "forward": 0.1}
    found = case_in(lateness(extra), evidence(extra, {}, states), peers())

    stage, place, seconds = found.where(("data", "forward"), frozenset({"sleep"}))
    assert (stage, place) == ("data", "a")
    assert seconds == pytest.approx(0.7 * 0.14)
    assert found.where(("eval",), frozenset({"sleep"})) == ("", "", 0.0)

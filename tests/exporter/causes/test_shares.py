"""The ways in which a figure or a state accounts for an excess."""

import math
from collections.abc import Mapping

import pytest

from exporter.causes.case import case_of
from exporter.causes.excess import stage_figure
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from exporter.causes.row import Kind, Row
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

FIGURE, OTHER = "gc_ratio", "sm_clock_hertz"
STAGES = ("forward", "backward")


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
    row = Row(
        cause="c",
        kind=Kind.AMOUNT,
        figure=FIGURE,
        stages=STAGES,
        states=frozenset({"running"}),
        share=share,
        says="",
        first_action="",
        healthy=healthy,
    )
    figures = {"forward_seconds": 0.2, "backward_seconds": 0.1, "data_seconds": 0.1, **(more or {})}
    usual = {
        stage_figure(stage): Quantiles(seconds, seconds + 1, seconds + 2)
        for stage, seconds in (("forward", 0.14), ("backward", 0.06), ("data", 0.1))
    }
    if peers is not None:
        usual[FIGURE] = Quantiles(peers, peers, peers)
    if own is not None:
        figures[FIGURE] = own
    case = case_of(Lateness("forward", PERSISTENT, 0.3, {}), Evidence(figures, states), usual)
    assert case is not None
    return share(row, case)


@pytest.mark.parametrize(
    ("own", "peers", "share"),
    [
        (0.22, 0.02, 0.8),
        (0.9, 0.02, 1.0),
        (0.2, 0.2, 0.0),
        (0.02, 0.2, 0.0),
        (0.055, 0.01, 0.0),
        (0.2, None, 0.0),
        (None, 0.0, 0.0),
    ],
)
def test_wait_is_a_time_a_step(own: float | None, peers: float | None, share: float) -> None:
    """A fifth of a step of 400 ms, more than its peers, is 80 of 100 ms."""
    assert accounted(waits(0.05), own, peers) == pytest.approx(share)


def test_wait_without_peers_is_compared_with_a_healthy_rank() -> None:
    """If that has one."""
    assert accounted(waits(0.05), 0.2, None, healthy=0.0) == pytest.approx(0.8)
    assert accounted(waits(0.05), 0.2, 0.2, healthy=0.0) == 0


def test_wait_is_no_longer_than_the_states_allow() -> None:
    """A thread that sleeps does not wait for a CPU."""
    asleep = (ThreadState("forward", "sleep", 1.0), ThreadState("backward", "sleep", 0.8))

    assert accounted(waits(0.05), 0.9, 0.02, states=asleep) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("own", "peers", "share"),
    [(80, 100, 0.6), (50, 100, 1.0), (99, 100, 0.0), (100, 80, 0.0), (50, 0, 0.0), (50, None, 0.0)],
)
def test_slower_rank_takes_longer_by_as_much(own: float, peers: float | None, share: float) -> None:
    """A fifth of the speed is missing in 300 ms: without that they are 240."""
    assert accounted(slower(0.02), own, peers) == pytest.approx(share)


@pytest.mark.parametrize(
    ("own", "peers", "share"),
    [(125, 100, 0.6), (200, 100, 1.0), (101, 100, 0.0), (80, 100, 0.0), (5, 0, 0.0), (5, None, 0)],
)
def test_more_work_takes_longer_by_as_much(own: float, peers: float | None, share: float) -> None:
    """A fifth of its work is more than its peers'."""
    assert accounted(more_work(0.02), own, peers) == pytest.approx(share)


@pytest.mark.parametrize(
    ("own", "peers", "share"),
    [(5, 0, 1.0), (5, 4.5, 0.0), (5, 5, 0.0), (2.9, 0, 0.0), (5, None, 0.0)],
)
def test_fact_may_cost_all_of_it(own: float, peers: float | None, share: float) -> None:
    """If it is more than its peers', and much."""
    assert accounted(has_more(1, at_least=3), own, peers) == share


@pytest.mark.parametrize(
    ("own", "peers", "share"),
    [(0.04, 1, 1.0), (0.06, 1, 0.0), (0.04, 0.08, 0.0), (0.04, 0.04, 0.0), (0.04, None, 0.0)],
)
def test_lack_may_cost_all_of_it(own: float, peers: float | None, share: float) -> None:
    """If it has less than its peers, and little."""
    assert accounted(has_less(0.5, at_most=0.05), own, peers) == share


def test_fact_costs_the_part_in_which_it_can() -> None:
    """Of the excess, as of the whole stage, half is spent asleep."""
    asleep = (ThreadState("forward", "sleep", 0.5), ThreadState("backward", "sleep", 0.5))

    assert accounted(has_more(1), 5, 0, states=asleep) == pytest.approx(0.5)


def test_better_figure_replaces_a_worse_one() -> None:
    """If it is known of both, the rank and its peers."""
    share = unless("data_seconds", has_more(1))
    unknown = unless("h2d_seconds", has_more(1))

    assert accounted(share, 5, 0) == 0
    assert accounted(unknown, 5, 0) == 1
    assert accounted(unknown, 5, 0, more={"h2d_seconds": 0.0}) == 1


def test_state_accounts_for_its_time_up_to_the_excess() -> None:
    """150 of 200 ms are more than the excess there, which is 60 of 100."""
    runs = (ThreadState("forward", "running", 0.75),)

    assert accounted(is_in_state, None, None, states=runs) == pytest.approx(0.6)
    assert accounted(is_in_state_like_peers, None, None, states=runs) == pytest.approx(0.6 * 0.3)
    assert accounted(is_in_state, None, None) == 0


def test_stage_that_peers_do_not_have_is_its_own_time() -> None:
    """As much of the excess as is in it."""
    with_eval = {"eval_seconds": 0.1}
    row = Row(
        cause="c",
        kind=Kind.WORK,
        stages=("eval",),
        share=has_stage_alone,
        says="",
        first_action="",
    )
    usual = {"forward_seconds": Quantiles(0.1, 0.1, 0.1)}
    late = Lateness("eval", PERSISTENT, 0.3, {})
    case = case_of(late, Evidence({"forward_seconds": 0.2, **with_eval}), usual)
    unknown = case_of(late, Evidence({"forward_seconds": 0.2, **with_eval}), {})

    assert case is not None
    assert unknown is not None
    assert has_stage_alone(row, case) == pytest.approx(0.5)
    assert has_stage_alone(row, unknown) == 0


def test_no_number_is_no_evidence() -> None:
    """Neither of the rank nor of its peers."""
    assert accounted(waits(0.05), math.nan, 0.0) == 0
    assert accounted(waits(0.05), 0.5, math.nan) == 0

"""The arithmetic of an excess: its size, a thread's time in it, and what a figure accounts for."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from exporter.causes.cpu_time import more_than_peers
from exporter.causes.excess import excess_of, stage_figure
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from exporter.causes.row import CauseRow, Certainty
from exporter.causes.shares import (
    Share,
    has_less,
    has_more,
    is_in_state,
    is_in_state_like_peers,
    more_work,
    slower,
    unless,
    waits,
)
from rank_probe.judge.verdict import PERSISTENT
from tests.exporter.causes.planted import LINE, at, case_in, evidence, lateness, peers

LATE = Lateness("data", PERSISTENT, 0.25, {"data": 0.6, "forward": 0.2})
STAGE_PEERS = {
    "data_seconds": Quantiles(0.02, 0.3, 0.4),
    "forward_seconds": Quantiles(0.1, 0.11, 0.12),
}
SOME = {**STAGE_PEERS, "checkpoint_seconds": Quantiles(0.0, 0.0, 0.1)}
NOTHING = {"data_seconds": Quantiles(0.0, 0.0, 0.0)}
JUDGED = {"data": 0.075, "forward": 0.025}


@pytest.mark.parametrize(
    ("own", "peers", "more", "step", "alone"),
    [
        # Over the better third: most peers may be late too. Less in a stage does not make up.
        ({"data": 0.2, "forward": 0.09}, STAGE_PEERS, {"data": 0.18}, 0.29, set()),
        # A step is as long as was measured, with the wait for others.
        ({"data": 0.2, "forward": 0.1, "step": 0.5}, STAGE_PEERS, {"data": 0.18}, 0.5, set()),
        ({"data": 0.2, "forward": 0.1, "step": 0.1}, STAGE_PEERS, {"data": 0.18}, 0.3, set()),
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
            STAGE_PEERS,
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
    """Shares need no seconds. A cost that makes no sense leaves the stage that is named."""
    found = excess_of(LATE, {}, {})
    assert found.more == pytest.approx({"data": 0.15, "forward": 0.05})
    assert found.own == pytest.approx({"data": 0.75, "forward": 0.25})
    assert not found.in_seconds

    for ratio in (0.0, -1.0, math.nan, math.inf):
        late = Lateness("backward", PERSISTENT, ratio, {"data": math.nan, "eval": -1.0})
        assert excess_of(late, {}, {}).more == {"backward": pytest.approx(0.03 / 1.03)}


# A rank of four on two CPUs, as measured: it works for 98 ms of a step of 103, 19 on a CPU.
PEERS: Final = {
    "step_seconds": 0.1033,
    "data_seconds": 0.0154,
    "forward_seconds": 0.0415,
    "backward_seconds": 0.0310,
    "other_seconds": 0.0102,
    "main_running_ratio": 0.1840,
    "main_run_queue_ratio": 0.0142,
}
# The same rank while four processes want its CPU.
HOGGED: Final = {
    "step_seconds": 0.1633,
    "data_seconds": 0.0152,
    "forward_seconds": 0.0633,
    "backward_seconds": 0.0561,
    "other_seconds": 0.0112,
    "main_running_ratio": 0.1168,
    "main_run_queue_ratio": 0.3392,
}
# It sleeps for 50 ms more, and it computes for as long.
SLEEPS: Final = {
    **PEERS,
    "step_seconds": 0.1533,
    "data_seconds": 0.0654,
    "main_running_ratio": 0.0190 / 0.1533,
    "main_run_queue_ratio": 0.0015 / 0.1533,
}
DECODES: Final = {**SLEEPS, "main_running_ratio": 0.0690 / 0.1533}


# Its times in the kernel are read every few seconds: they may be those of before the hogs.
STALE: Final = HOGGED | {
    name: PEERS[name] for name in ("main_running_ratio", "main_run_queue_ratio")
}
SEEN: Final = [
    ThreadState(stage, state, share)
    for stage, shares in (("forward", (0.65, 0.24, 0.11)), ("backward", (0.45, 0.34, 0.21)))
    for state, share in zip(("sleep", "cpu_queue", "running"), shares, strict=True)
]
# NCCL spins: 100 ms on a CPU are more than the 98 in which they work.
SPINNING: Final = {**PEERS, "main_running_ratio": 0.1000 / 0.1033}


@pytest.mark.parametrize(
    ("own", "peers", "seen", "runs", "blocked"),
    [
        # A hogged rank still sleeps for half of its longer stages, but no longer than before. The
        # 1.5 ms in which peers wait for a CPU may belong to their wait for other ranks.
        (HOGGED, PEERS, [], 0.1, 0.0),
        (SLEEPS, PEERS, [], 0.0, 48.5),
        (DECODES, PEERS, [], 50.0, 0.0),
        # A thread that is seen to wait for a CPU is not blocked.
        (STALE, PEERS, [], 11.0, 34.4),
        (STALE, PEERS, SEEN, 11.0, 13.8),
        # Peers that run while they wait for others say nothing.
        (SLEEPS, SPINNING, [], None, None),
    ],
)
def test_excess_is_what_the_kernel_counts_beyond_its_peers(
    own: Mapping[str, float],
    peers: Mapping[str, float],
    seen: Sequence[ThreadState],
    runs: float | None,
    blocked: float | None,
) -> None:
    """Milliseconds a step for which a thread runs, and is blocked."""
    usual = {name: Quantiles(value, value, value) for name, value in peers.items()}
    found = more_than_peers(case_in(lateness({"data": 0.3}), Evidence(own, seen), usual))
    told = (None, None) if found is None else (1e3 * found.runs, 1e3 * found.blocked)

    assert told == (runs, blocked) or told == pytest.approx((runs, blocked), abs=1.0)


FIGURE = "gc_ratio"


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
    row = CauseRow(
        cause="c",
        certainty=Certainty.AMOUNT,
        figure=FIGURE,
        stages=("forward", "backward"),
        states=frozenset({"running"}),
        share=share,
        says="",
        first_action="",
        healthy=healthy,
    )
    return share(row, case)


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


def test_better_figure_replaces_a_worse_one() -> None:
    """If it is known of both, the rank and its peers; without peers a healthy rank is compared."""
    unknown = unless("h2d_seconds", has_more(1))
    assert accounted(unless("data_seconds", has_more(1)), 5, 0) == 0
    assert accounted(unknown, 5, 0) == 1
    assert accounted(unknown, 5, 0, more={"h2d_seconds": 0.0}) == 1

    assert accounted(WAITS, 0.2, None, healthy=0.0) == pytest.approx(0.8)
    assert accounted(WAITS, 0.2, 0.2, healthy=0.0) == 0


def test_state_accounts_for_its_time_up_to_the_excess() -> None:
    """150 of 200 ms are more than the excess there, which is 60 of 100."""
    runs = (ThreadState("forward", "running", 0.75),)

    assert accounted(is_in_state, None, None, states=runs) == pytest.approx(0.6)
    assert accounted(is_in_state_like_peers, None, None, states=runs) == pytest.approx(0.6 * 0.3)
    assert accounted(is_in_state, None, None) == 0


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

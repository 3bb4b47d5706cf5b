"""What holds of every explanation, whatever the figures."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from exporter.causes.explain import explain
from exporter.causes.model import THREAD_STATES, Cause, Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import LATE_KINDS
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.stages import STAGES

T = TypeVar("T")
STAGE = st.sampled_from([stage for stage in STAGES if stage != "sync"])
NUMBER = st.one_of(
    st.floats(0, 1), st.floats(0, 1e10), st.floats(), st.sampled_from([0.0, 1.0, float("nan")])
)
SANE = st.floats(1e-3, 1e3)
STATE = st.builds(
    ThreadState,
    STAGE,
    st.sampled_from(THREAD_STATES),
    st.floats(0, 1) | st.floats(),
    st.sampled_from(["", "f (a.py:1)", "/data (nfs)", "{own} [x]"]),
)
EVIDENCE = st.builds(
    Evidence,
    st.dictionaries(st.sampled_from(FIGURES), NUMBER),
    st.lists(STATE, max_size=6),
    st.lists(STATE, max_size=3),
    st.dictionaries(st.sampled_from(FIGURES), st.sampled_from(["", "too hot", "/data (nfs)"])),
)
QUANTILES = st.lists(NUMBER, min_size=3, max_size=3).map(lambda each: Quantiles(*each))
PEERS = st.dictionaries(st.sampled_from(FIGURES), QUANTILES)
LATE = st.builds(
    Lateness,
    STAGE,
    st.sampled_from(LATE_KINDS),
    NUMBER,
    st.dictionaries(STAGE, NUMBER),
    st.booleans(),
)
TIMES = [f"{stage}_seconds" for stage in STAGES if stage != "sync"]


@settings(deadline=None)
@given(LATE, EVIDENCE, PEERS)
def test_explanation_makes_sense(
    late: Lateness, evidence: Evidence, peers: dict[str, Quantiles]
) -> None:
    """Shares are shares, every word is filled in, and a cause accounts for half."""
    cause = explain(late, evidence, peers)
    if cause is None:
        return

    assert 0 <= cause.share <= 1
    assert (cause.share >= 0.5) == (cause.cause != "unknown")
    assert len(cause.others) <= 2
    names = [(each.cause, each.detail) for each in cause.others]
    assert len({*names, (cause.cause, cause.detail)}) == 1 + len(names)
    for each in cause.others:
        assert 0.1 <= each.share <= 1
        assert cause.cause != "unknown" or each.share < 0.5
    assert cause.figure in ("", *FIGURES)
    assert cause.value is None or cause.figure
    assert "{" not in cause.sentence.replace("{own} [x]", "")


@settings(deadline=None)
@given(LATE, EVIDENCE, PEERS, st.randoms())
def test_order_does_not_matter(
    late: Lateness, evidence: Evidence, peers: dict[str, Quantiles], random: Random
) -> None:
    """Neither that of figures nor that of states."""

    def mixed(items: Iterable[T]) -> list[T]:
        shuffled = list(items)
        random.shuffle(shuffled)
        return shuffled

    other = replace(
        evidence,
        figures=dict(mixed(evidence.figures.items())),
        states=mixed(evidence.states),
        worker_states=mixed(evidence.worker_states),
    )
    assert told(explain(late, evidence, peers)) == told(
        explain(late, other, dict(mixed(peers.items())))
    )


@settings(deadline=None)
@given(
    LATE,
    st.dictionaries(st.sampled_from(TIMES), SANE),
    st.dictionaries(st.sampled_from(TIMES), SANE),
    st.lists(STATE, max_size=4),
    st.floats(0, 1),
    st.sampled_from([0.001, 0.125, 8.0, 1024.0]),
)
def test_longer_steps_change_no_share(
    late: Lateness,
    own: dict[str, float],
    usual: dict[str, float],
    states: list[ThreadState],
    waits: float,
    times: float,
) -> None:
    """A model that is eight times as large is late for the same reason."""
    ratios = {"gc_ratio": waits, "main_run_queue_ratio": waits / 2}

    def explained(by: float) -> Cause | None:
        figures = {name: seconds * by for name, seconds in own.items()}
        peers = {name: Quantiles(*[seconds * by] * 3) for name, seconds in usual.items()}
        zero = dict.fromkeys(ratios, Quantiles(0, 0, 0))
        return explain(late, Evidence({**figures, **ratios}, states), {**peers, **zero})

    one, other = explained(1.0), explained(times)
    assert one is not None
    assert other is not None
    # A share right at the half may be told or not.
    if (one.cause, one.detail) == (other.cause, other.detail):
        assert other.share == pytest.approx(one.share)
    else:
        assert "unknown" in (one.cause, other.cause)
        assert max(one.share, other.share) == pytest.approx(0.5)


@settings(deadline=None)
@given(LATE, st.dictionaries(st.sampled_from(FIGURES), NUMBER))
def test_figures_of_its_peers_never_win(late: Lateness, figures: dict[str, float]) -> None:
    """Whatever they are: what all share explains no excess."""
    peers = {name: Quantiles(value, value, value) for name, value in figures.items()}
    cause = explain(late, Evidence(figures), peers)

    assert cause is None or (cause.cause, cause.others) == ("unknown", ())


def told(cause: Cause | None) -> object:
    """What is said, apart from the last digits of sums."""
    if cause is None:
        return None
    return cause.cause, cause.detail, round(cause.share, 6), cause.figure

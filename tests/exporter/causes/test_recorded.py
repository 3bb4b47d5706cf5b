"""What holds of every explanation: of real late ranks, recorded once, and of any figures at all."""

import json
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from benchmarks.causes.score import RIGHT, RIGHT_WHEN_BUSY, UNKNOWN
from exporter.causes.explain import explain
from exporter.causes.model import Cause, Evidence, Lateness, Quantiles, ThreadState
from rank_probe.judge.verdict import LATE_KINDS
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import THREAD_STATES
from rank_probe.wire.stages import STAGES

RECORDED: Final = Path(__file__).parents[2] / "fixtures" / "causes" / "planted.jsonl"
CASES: Final = [json.loads(line) for line in RECORDED.read_text().splitlines()]
# All four ranks wait for a CPU for a third of the time; the worker has no peer to compare with.
CANNOT_BE_TOLD: Final = [("hog", True), ("workers", True)]


def explained(case: dict[str, Any]) -> Cause:
    """Return why the rank of a recorded *case* was late."""
    found = explain(
        Lateness(**case["late"]),
        Evidence(
            case["figures"],
            [ThreadState(*each) for each in case["states"]],
            [ThreadState(*each) for each in case["workers"]],
            case["facts"],
        ),
        {name: Quantiles(*each) for name, each in case["peers"].items()},
    )
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda each: f"{each['planted']}-{each['busy']}")
def test_what_was_planted_is_told(case: dict[str, Any]) -> None:
    """Also with all CPUs busy, except where nothing that was measured tells it: then unknown."""
    planted, busy = case["planted"], case["busy"]
    found = explained(case)
    right = [*RIGHT[planted], *(RIGHT_WHEN_BUSY.get(planted, ()) if busy else ())]

    if (planted, busy) in CANNOT_BE_TOLD:
        right = [UNKNOWN]
    assert {found.cause, f"{found.cause}/{found.detail}"} & set(right), found


STAGE = st.sampled_from([stage for stage in STAGES if stage != "sync"])
NUMBER = st.one_of(
    st.floats(0, 1), st.floats(0, 1e10), st.floats(), st.sampled_from([0.0, 1.0, float("nan")])
)
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
@given(LATE, st.dictionaries(st.sampled_from(FIGURES), NUMBER))
def test_figures_of_its_peers_never_win(late: Lateness, figures: dict[str, float]) -> None:
    """Whatever they are: what all share explains no excess."""
    peers = {name: Quantiles(value, value, value) for name, value in figures.items()}
    cause = explain(late, Evidence(figures), peers)

    assert cause is None or (cause.cause, cause.others) == ("unknown", ())

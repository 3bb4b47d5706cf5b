"""The benchmark of `rankskew diagnose` knows every fault, and tells right from wrong."""

from typing import Any

import pytest

from benchmarks.accuracy.plan import SINGLE, grid
from benchmarks.diagnose.plan import BALANCED, CANNOT_TELL, FOUND, TOUR, Expected, of_segment
from benchmarks.diagnose.score import is_right, score
from fleet_simulator.plan import tour
from rank_probe.wire.stages import STAGES
from rankskew.diagnose.advice import advice, situations


def finding(**changes: Any) -> dict[str, Any]:
    """Return what diagnose says of a late rank 6, with *changes*."""
    return {
        "what": "input",
        "cause": "input",
        "detail": "workers",
        "rank": 6,
        "ranks": [6],
        "place": {"node": "n2"},
        "stage": "data",
        "first": "`pgrep -P 20006`, then `py-spy dump` of one",
        "explains": 0.97,
    } | changes


def asked(*findings: dict[str, Any], status: int = FOUND) -> dict[str, Any]:
    document = {"findings": list(findings), "exit_status": status}
    return score("simulate", "loader", TOUR["loader"], document)


def test_every_simulated_fault_has_an_expectation() -> None:
    """A new fault needs a line, with causes and situations that there are."""
    assert set(TOUR) == {plan.job_id for plan in tour()}
    for expected in TOUR.values():
        assert set(expected.what) <= {*advice(), *situations()}
        assert expected.stage in (None, "frozen", *STAGES)


def test_every_recorded_fault_has_an_expectation() -> None:
    """Healthy segments are balanced; a late rank has a cause that a trace can tell."""
    for segments in grid(["ddp"], [2, 4], [1], SINGLE, [0.25]):
        for segment in segments:
            expected = of_segment(segment)
            assert (expected.status == BALANCED) == (segment.kind is None)
            assert set(expected.ranks) == {rank for rank, _ in segment.late()}


def test_right_answer_is_right() -> None:
    """Rank, stage, cause, first action and exit status."""
    row = asked(finding())

    assert is_right(row)
    assert row["said"] == "rank 6 data input (workers)"
    assert not row["wrong cause"]


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("rank", finding(ranks=[5])),
        ("stage", finding(stage="forward")),
        ("cause", finding(detail="reads")),
        ("first action", finding(first="`top`")),
    ],
)
def test_each_part_can_be_wrong(part: str, wrong: dict[str, Any]) -> None:
    """One wrong part makes the answer wrong."""
    row = asked(wrong)

    assert row[part] is False
    assert not is_right(row)


def test_wrong_cause_is_counted() -> None:
    """The worst that can be said; that nothing is known, or not yet, is not wrong."""
    assert asked(finding(what="gc", cause="gc"))["wrong cause"]
    assert not asked(finding(what="unknown", cause="unknown"))["wrong cause"]
    assert not asked(finding(what="hung", cause=None))["wrong cause"]


def test_late_ranks_of_all_findings_count() -> None:
    """Two late ranks may be two findings."""
    two = Expected(FOUND, ("input",), None, (3, 6), "data", "py-spy")
    document = {
        "findings": [finding(), finding(rank=3, ranks=[3], stage="backward")],
        "exit_status": FOUND,
    }

    assert score("trace", "two", two, document)["rank"] is True


def test_exit_status_without_a_report() -> None:
    """A sentence instead of a report has status 2."""
    document = {"trouble": "There is no job.", "exit_status": CANNOT_TELL}

    assert is_right(score("simulate", "none", Expected(CANNOT_TELL), document))
    assert not is_right(score("simulate", "none", Expected(FOUND), document))

"""Tests that the crosscheck serves what the ranks push and finds what the rules get wrong."""

from typing import Any

import pytest

from benchmarks.crosscheck.compare import Case, compare, reference
from devstack.parts import QueryResult
from rankskew.accounting.run import kinds
from tests.alerts.jobs import Fault, Job, simulate

LATE = (1, "forward")
ASKED = 180.0
JOB = Job(seconds=200, faults=(Fault(*LATE, 0.25),))
CASE = Case("straggler", JOB, LATE)
STEPS = simulate(JOB)


def row(scale: float = 1.0, rank: int = LATE[0], source: str = "join") -> dict[str, Any]:
    """What comes of rules that are *scale* too high, and name *rank*."""
    who = {"job_id": CASE.name}
    true = reference(CASE, STEPS, ASKED)
    right = kinds(true, {LATE[0]})

    def of(kind: str, seconds: float) -> QueryResult:
        return QueryResult(who | {"kind": kind}, scale * seconds / true.seconds)

    answer = {
        "named": [QueryResult(who | {"rank": str(rank), "stage": LATE[1]}, 1.0)],
        "all": [of("all", right.lost)],
        "kinds": [
            of(kind, getattr(right, kind)) for kind in ("persistent", "rotating", "group", "common")
        ],
        "judge": [QueryResult(who | {"judge": "join" if source == "join" else "node"}, 1.0)],
    }
    return compare(CASE, STEPS, {ASKED: answer})


def test_right_answers_are_right() -> None:
    """What the reference says differs by nothing."""
    right = row()

    assert right["all"] == pytest.approx(0, abs=1e-9)
    assert right["GPUs lost"] > 0.5
    assert right["right"]
    assert right["wrong"] == ""


def test_wrong_answers_are_found() -> None:
    """A cost that is a quarter too high, another rank, another source, and silence."""
    high = row(scale=1.25)
    assert high["all"] == pytest.approx(0.25)
    assert high["wrong"] == "all, persistent"
    assert row(rank=3)["wrong"] == "named 3:forward"
    assert row(source="block")["wrong"] == "block spoke"
    silent: dict[str, list[QueryResult]] = {"named": [], "all": [], "kinds": [], "judge": []}
    said = compare(CASE, STEPS, {ASKED: silent})["wrong"]
    assert said == "all, persistent, common, named nobody, nobody spoke"

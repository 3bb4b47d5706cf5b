"""The benchmark of planted causes tells right from wrong, by what is told first."""

import pytest

from benchmarks.causes.causes_job import CAUSES, LATE_RANK
from benchmarks.causes.score import (
    DETAILS,
    HEALTHY,
    RIGHT,
    Heard,
    Said,
    outcome,
)
from rankskew.diagnose.advice import advice

LATE = str(LATE_RANK)


def heard(*first: Said, alert: str = "") -> Heard:
    found = Heard()
    found.hear(first)
    found.hear_alerts([Said(LATE, alert, 30.0)] if alert else [])
    return found


def test_each_planted_cause_has_a_right_answer() -> None:
    """One that the advice knows."""
    assert {*RIGHT, HEALTHY} == set(CAUSES)
    for causes in RIGHT.values():
        assert {each.partition("/")[0] for each in causes} <= {*advice(), "code", "storage"}
    assert set(DETAILS) <= set(RIGHT)


def test_first_answer_counts() -> None:
    """The later one does not repair it."""
    found = heard(Said(LATE, "cpu", 9.0, "run_queue"), alert="cpu")
    found.hear([Said(LATE, "code", 20.0, "sleep")])
    found.hear_alerts([Said(LATE, "code", 40.0)])

    assert outcome("sleep", found) == "wrong"


@pytest.mark.parametrize(
    ("planted", "found", "expected"),
    [
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="code"), "right"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep")), "right"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="unknown"), "unknown"),
        ("sleep", heard(Said(LATE, "unknown", 9.0), alert="code"), "unknown"),
        ("sleep", heard(Said(LATE, "code", 9.0, "sleep"), alert="cpu"), "wrong"),
        ("sleep", heard(Said("0", "code", 9.0, "sleep")), "wrong"),
        ("sleep", heard(Said(LATE, "code", 9.0), Said("0", "unknown", 9.0)), "wrong"),
        ("sleep", heard(), "silent"),
        ("network", heard(Said(LATE, "code", 9.0, "socket"), alert="code"), "right"),
        ("network", heard(Said(LATE, "code", 9.0, "sleep"), alert="code"), "wrong"),
        (HEALTHY, heard(), "right"),
        (HEALTHY, heard(Said(LATE, "unknown", 9.0)), "wrong"),
    ],
)
def test_outcome(planted: str, found: Heard, expected: str) -> None:
    """A wrong cause and a wrong rank are wrong, however often the right one is told too."""
    assert outcome(planted, found) == expected


def test_busy_cpus_are_true_too_for_who_computes() -> None:
    """Not for who sleeps, and not on a quiet machine."""
    found = heard(Said(LATE, "cpu", 9.0, "run_queue"))

    assert outcome("decode", found, busy=True) == "right"
    assert outcome("decode", found) == outcome("sleep", found, busy=True) == "wrong"

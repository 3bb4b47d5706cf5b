"""The benchmark of planted causes tells right from wrong, by what is told first."""

from typing import Any

import pytest

from benchmarks.causes_job import CAUSES, LATE_RANK
from benchmarks.causes_score import (
    DETAILS,
    HEALTHY,
    RIGHT,
    Heard,
    Said,
    outcome,
    row,
    said_by,
    said_in,
)
from rankskew.diagnose.advice import advice

PAGE = """\
# HELP rankskew_late_cause_info Why a rank is late (the exporter of its node).
# TYPE rankskew_late_cause_info gauge
rankskew_late_cause_info{cause="code",detail="sleep",figure="",first_action="look",gpu="",\
job_id="sleep-1",nodename="n",peer_group="all",pid="7",rank="2",\
sentence="asleep in \\"x\\""} 1.0
rankskew_late_cause_info{cause="cpu",detail="run_queue",job_id="other",rank="0"} 1.0
# TYPE rankskew_steps counter
rankskew_steps_total{job_id="sleep-1",rank="2"} 9.0
"""
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


def test_cause_is_read_from_the_series() -> None:
    """That of the job, with its sentence; nothing where nobody is late."""
    assert said_in("", "sleep-1", 3.0) == []
    assert said_in(PAGE, "sleep-1", 3.0) == [Said(LATE, "code", 3.0, "sleep", 'asleep in "x"')]


def test_cause_is_read_from_the_alert() -> None:
    """Once it fires; alerts about something else have no cause."""
    labels = {"job_id": "sleep-1", "rank": LATE, "cause": "code"}
    alerts = [
        {"state": "pending", "labels": labels},
        {"state": "firing", "labels": labels | {"job_id": "other"}},
        {"state": "firing", "labels": {"job_id": "sleep-1"}},
    ]
    assert said_by(alerts, "sleep-1", 30.0) == []
    alerts[0]["state"] = "firing"
    assert said_by(alerts, "sleep-1", 30.0) == [Said(LATE, "code", 30.0)]


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


def test_row_has_what_was_first_and_what_diagnose_says() -> None:
    """Beside each other; whether the detail is right too is told apart."""
    finding: dict[str, Any] = {
        "cause": "code",
        "detail": "sleep",
        "lines": [{"place": "spin (job.py:3)", "share": 0.9}],
    }
    found = row(
        "sleep",
        1,
        heard(Said(LATE, "code", 9.0, "lock", "it waits"), alert="code"),
        finding,
        busy=True,
    )

    assert (found["outcome"], found["detail right"], found["after"]) == ("right", False, 9.0)
    assert (found["alert"], found["alert after"]) == ("code", 30.0)
    assert (found["diagnose"], found["line"]) == ("code", "spin (job.py:3)")
    assert row("sleep", 1, heard(), {}, busy=False)["outcome"] == "silent"

"""The benchmark of planted causes tells right from wrong, and undoes what it plants."""

from typing import Any

import pytest

from benchmarks.causes import HEALTHY, RIGHT, Said, row
from benchmarks.causes_job import CAUSES, LATE_RANK
from exporter.advice import advice
from rank_probe.stages import STAGES


def said(status: int = 1, **changes: Any) -> Said:
    """Return what diagnose says of a rank that is short of CPU, with *changes*."""
    finding = {
        "rank": LATE_RANK,
        "stage": "forward",
        "cause": "cpu",
        "detail": "run_queue",
        "confidence": "high",
        "first": "see what else runs with `top`",
        "lines": [{"place": "spin (job.py:3)", "share": 0.9}],
    }
    return Said(status, {"findings": [{"rank": None}, finding | changes]})


def test_each_planted_cause_has_a_right_answer() -> None:
    """One that the advice knows, in a stage that there is."""
    assert {*RIGHT, HEALTHY} == set(CAUSES)
    for cause, stages in RIGHT.values():
        assert cause in advice()
        assert set(stages) <= set(STAGES)


def test_right_answer_is_right() -> None:
    """The rank and its cause; the stage is told beside it."""
    found = row("hog", 1, said())

    assert (found["right"], found["stage right"], found["wrong and sure"]) == (True, True, False)
    assert found["line"] == "spin (job.py:3)"


@pytest.mark.parametrize(
    ("changes", "sure"),
    [
        ({"cause": "gc"}, True),
        ({"rank": 0}, True),
        ({"cause": "gc", "confidence": "medium"}, False),
    ],
)
def test_wrong_answer_with_high_confidence_is_worse(changes: dict[str, Any], sure: bool) -> None:
    """A reader would act on it."""
    found = row("hog", 1, said(**changes))

    assert (found["right"], found["wrong and sure"]) == (False, sure)


def test_nobody_may_be_named_in_a_healthy_job() -> None:
    """And the exit status says that it is balanced."""
    nobody = {"findings": [{"rank": None}]}

    assert row(HEALTHY, 1, Said(0, nobody))["right"]
    assert not row(HEALTHY, 1, Said(2, nobody))["right"]
    assert not row(HEALTHY, 1, said())["right"]
    assert not row("hog", 1, Said(0, nobody))["right"]

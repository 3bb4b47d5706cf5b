"""The tables of docs/diagnose.md, from results."""

from typing import Any

import pytest

from docs import diagnose_table


def row(**changes: Any) -> dict[str, Any]:
    return {
        "source": "simulate",
        "fault": "loader",
        "said": "rank 6 data input",
        "rank": True,
        "stage": True,
        "cause": True,
        "first action": True,
        "exit status": True,
        "explains": 0.93,
        "wrong cause": False,
    } | changes


def test_each_fault_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not apply is left empty, and what is wrong stands out."""
    found = [
        row(),
        row(fault="gc", cause=False, **{"wrong cause": True}),
        row(source="trace"),
        row(fault="healthy", rank=None, explains=None),
    ]
    monkeypatch.setattr(diagnose_table, "rows", lambda name: found)
    said = diagnose_table.faults()

    assert said.startswith("All right in 2 of 3; a wrong cause in 1, also ")
    assert "| loader | rank 6 data input | right | right | right | right | right | 93% |" in said
    assert "| gc | rank 6 data input | right | right | **wrong** |" in said
    assert "| healthy | rank 6 data input |  | right |" in said
    assert said.count("\n| ") == 5
    assert diagnose_table.traces().startswith("All right in 1 of 1; a wrong cause in 0.\n")


def test_each_planted_cause_is_shown_with_what_was_told_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And how many were right, on a quiet machine and on a busy one."""
    sleep = {
        "planted": "sleep",
        "busy": False,
        "outcome": "right",
        "rank": "2",
        "cause": "code",
        "detail": "sleep",
        "after": 9.2,
        "sentence": "its thread is asleep",
    }
    silent = {
        "planted": "slow_worker",
        "busy": True,
        "outcome": "silent",
        "cause": "",
        "after": 0.0,
    }
    wrong = sleep | {"planted": "hog", "busy": True, "outcome": "wrong", "sentence": ""}
    later = sleep | {"after": 11.2, "sentence": "it sleeps"}
    monkeypatch.setattr(diagnose_table, "rows", lambda name: [sleep, later, silent, wrong])

    said = diagnose_table.planted()

    assert said.startswith(
        "The first cause is right in 2 of 2 and wrong in 0; with all CPUs busy, the first cause is "
        "right in 0 of 2 and wrong in 1.\n"
    )
    assert "| sleep | rank 2: code (sleep): its thread is asleep | 10 s | 2 right |" in said
    assert "| slow worker, all CPUs busy | nothing |  | 1 silent |" in said
    assert "| hog, all CPUs busy | rank 2: code (sleep) | 9 s | 1 **wrong** |" in said

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
        "confidence": "high",
        "wrong with high confidence": False,
    } | changes


def test_each_fault_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not apply is left empty, and what is wrong stands out."""
    found = [
        row(),
        row(fault="gc", cause=False, **{"wrong with high confidence": True}),
        row(source="trace"),
        row(fault="healthy", rank=None, confidence=None),
    ]
    monkeypatch.setattr(diagnose_table, "rows", lambda name: found)
    said = diagnose_table.faults()

    assert said.startswith("All right in 2 of 3; a wrong cause with high confidence in 1, also ")
    assert "| loader | rank 6 data input | right | right | right | right | right | high |" in said
    assert "| gc | rank 6 data input | right | right | **wrong** |" in said
    assert "| healthy | rank 6 data input |  | right |" in said
    assert said.count("\n| ") == 5
    assert diagnose_table.traces().startswith(
        "All right in 1 of 1; a wrong cause with high confidence in 0.\n"
    )

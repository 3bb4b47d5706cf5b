"""Rows of the table of faults."""

import json
from pathlib import Path

import pytest

from benchmarks.faults import rows
from benchmarks.faults.rows import broken, merged, row


def test_faults_that_were_not_measured_again_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is replaced in its place, a new one comes last."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    assert merged([row("kills", 1)]) == [row("kills", 1)]
    before = [row("kills", 30), row("disk", 0, 0)]
    (tmp_path / "faults.json").write_text(json.dumps({"rows": before}))

    assert merged([row("kills", 200), row("clock", 0)]) == [
        row("kills", 200),
        row("disk", 0, 0),
        row("clock", 0),
    ]


def test_only_what_is_above_its_most_is_broken() -> None:
    """A figure at its limit holds, and one without a limit promises nothing."""
    assert broken([row("at", 1.0, 1.0), row("above", 1.1, 1.0), row("free", 9.0)]) == [
        row("above", 1.1, 1.0)
    ]

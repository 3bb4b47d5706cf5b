"""Tests that the tables on lines of code say what was measured."""

from pathlib import Path
from typing import Any

import pytest
from docs.late_lines_table import cost, lines

from docs import figures
from tests.docs.test_figures import keep


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results in place of the real one."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return tmp_path


def test_line_that_was_named_stands_beside_the_planted(results: Path) -> None:
    """A healthy job has no line, and zero samples are told."""
    named: dict[str, Any] = {
        "slow line": "loss",
        "planted at": "job.py:9",
        "stage": "forward",
        "first line": "loss_of (job.py:9)",
        "share": 0.584,
        "line shown after, s": 6.07,
        "samples on it": 400,
        "on the others": 0,
    }
    healthy = dict.fromkeys(named) | {"slow line": "none", "samples on it": 0, "on the others": 0}
    keep(results, "late_lines", [named, healthy])

    assert lines().splitlines()[-2:] == [
        "| loss | job.py:9 | forward | loss_of (job.py:9) | 58% | 6.1 | 400 | 0 |",
        "| none |  |  | none |  |  | 0 | 0 |",
    ]


def test_cost_stands_beside_its_error_and_limit(results: Path) -> None:
    """What has no limit has none in the table."""
    keep(
        results,
        "late_lines_cost",
        [
            {"what": "longer by %", "measured": 0.123, "standard error": 0.05, "most allowed": 0.5},
            {"what": "samples", "measured": 2_400, "standard error": None, "most allowed": None},
        ],
    )

    assert cost().splitlines()[-2:] == [
        "| longer by % | 0.123 | 0.05 | 0.5 |",
        "| samples | 2,400 |  |  |",
    ]

"""Tests that the tables on comparisons say what was measured."""

from pathlib import Path
from typing import Any

import pytest
from docs.compare_table import coverage, planted

from docs import figures
from tests.docs.test_figures import keep


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results in place of the real one."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return tmp_path


def test_the_worst_of_all_correlations_is_told(results: Path) -> None:
    """The lowest coverage, and the most false alarms where nothing changed."""
    case: dict[str, Any] = {"steps": 300, "straggler": "none", "repeats": 2000}
    measured = [
        (0.0, 1.0, 0.01, 0.96, 0.02),
        (0.8, 1.0, 0.06, 0.941, 0.025),
        (0.8, 1.05, 0.05, 0.95, 0.81),
    ]
    names = ("correlation", "true ratio", "refused", "interval holds the truth", "told worse")
    keep(
        results,
        "compare_coverage",
        [case | dict(zip(names, each, strict=True)) for each in measured],
    )

    assert coverage().splitlines()[-1] == (
        "| 300 | none | 1% to 6% | 94.1% or more | 2.5% or less | 81% to 81% |"
    )


def test_what_was_planted_stands_beside_what_was_said(results: Path) -> None:
    """A refusal has no interval."""
    said: dict[str, Any] = {
        "fault": "data",
        "true ratio": 1.25,
        "ratio": 1.249,
        "late": "1 in data",
    }
    said |= {"from": 1.24, "to": 1.26, "verdict": "worse"}
    refused = said | {"fault": "none", "ratio": None, "verdict": "cannot_tell", "late": ""}
    keep(results, "compare_planted", [said, refused])

    assert planted().splitlines()[-2:] == [
        "| one rank late in data | 1.250 | 1.249 | 1.240 to 1.260 | worse | 1 in data |",
        "| none | 1.250 |  |  | cannot tell |  |",
    ]

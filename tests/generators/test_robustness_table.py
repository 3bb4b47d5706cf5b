"""Tests that the tables of what was tried say what was measured."""

from pathlib import Path

import pytest
from docs.robustness_table import measured, slow_clients

from docs import figures
from tests.docs.test_figures import keep


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results in place of the real one."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return tmp_path


def test_figure_stands_beside_what_is_allowed(results: Path) -> None:
    """Whole numbers are told exactly, measurements in three digits, no limit is no number."""
    keep(
        results,
        "restarts",
        [
            {"what": "pushes", "measured": 384_000, "most allowed": None},
            {"what": "back after, s", "measured": 0.12345, "most allowed": 5.0},
        ],
    )

    assert measured("restarts").splitlines()[-2:] == [
        "| pushes | 384,000 |  |",
        "| back after, s | 0.123 | 5 |",
    ]


def test_scrapes_that_all_failed_have_no_time(results: Path) -> None:
    """A row without an answered scrape says so."""
    row: dict[str, object] = {"what": "same", "failed": 60, "scrapes": 60, "most open files": 214}
    times = dict.fromkeys(("p50 ms", "p99 ms", "longest ms"))
    keep(results, "slow_clients", [row | times | {"ranks unheard": 0, "new ranks refused": 60}])

    assert slow_clients().splitlines()[-1] == (
        "| same | 60 of 60 | none (p99 none, longest none) ms | 0 | 60 of 60 | 214 |"
    )

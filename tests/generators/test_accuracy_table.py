"""Tests that the page on accuracy tells misses as loudly as hits."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy_plan import Segment
from benchmarks.accuracy_score import score
from benchmarks.accuracy_trace import Truth
from docs import accuracy_table, figures

TRUTH = Truth(0.05, 1.25, 1.2, 0.26, 0.6, 0.5, None, 0.1, 3.0, None, 10.0)


def row(fault: str, *ranks: int) -> dict[str, Any]:
    """What is said of a segment when *ranks* are named, in data."""
    names = {"kind": "persistent", "instance": None, "stage": "data"}
    times = {"onset_s": 121.0, "named_s": 150.0, "cleared_s": None, "gpus_lost": 0.5}
    job = {
        "findings": [names | times | {"rank": rank} for rank in ranks],
        "slowdown": 1.2,
        "gpus_lost_by_kind": {"persistent": 0.5},
        "source": "judge",
        "not_judgeable": [],
    }
    return score(Segment("ddp", 4, 1, fault, 0.25), TRUTH, job, 40.0) | {"judged": "abc"}


def page(rows: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tables of *rows*."""
    (folder / "accuracy.json").write_text(
        json.dumps({"machine": {"cpus": 2, "torch": "2"}, "rows": rows})
    )
    monkeypatch.setattr(figures, "RESULTS", folder)
    monkeypatch.setattr(accuracy_table, "RESULTS", folder)
    return accuracy_table.faults()


def test_all_right_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right names and silence count, and no miss is listed."""
    text = page([row("data", 0), row("none")], tmp_path, monkeypatch)

    assert "2 of 2 runs were judged correctly" in text
    assert "| 25 % | 1 | 1 | 1 | 1 | 1 | 1 | 0 | 30 | 0.0% | 0.0% |" in text
    assert text.endswith("Nothing was missed.")


def test_misses_are_listed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else, nobody, and anybody in a healthy job: each has its line, and is in bold."""
    rows = [row("data", 3), row("forward"), row("none", 2)]
    text = page(rows, tmp_path, monkeypatch)

    assert "0 of 3 runs were judged correctly" in text
    assert "| 25 % | 2 | 2 | **0** |" in text
    assert "| ddp, 4 ranks, seed 1 | data | 26.0% | nobody | persistent rank 3" in text
    assert "| ddp, 4 ranks, seed 1 | forward | 26.0% | nobody |  |" in text
    assert "| none | ddp | 4 | 1 | **1** |" in text


@pytest.mark.parametrize(
    ("runs", "told"), [(1, ["| s |", "| 23.5 |"]), (3, ["| median, s | max, s |", "| 23.5 | 40 |"])]
)
def test_one_run_has_no_median(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, told: list[str]
) -> None:
    """Where each row is of a single run, its time is not called a median or a maximum."""
    counts = {"scrape, s": 15.0, "fault, %": 10.0, "runs": runs, "fired": runs, "wrong": 0}
    times = {"median, s": 23.54, "max, s": 40.0}
    (tmp_path / "latency.json").write_text(json.dumps({"rows": [counts | times]}))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(accuracy_table, "RESULTS", tmp_path)
    text = accuracy_table.latency()

    assert all(part in text for part in told)
    assert ("median" in text) is (runs > 1)


def test_page_stands_without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh checkout that has measured nothing still makes its pages."""
    monkeypatch.setattr(accuracy_table, "RESULTS", tmp_path)

    assert accuracy_table.faults() == accuracy_table.latency() == "Not measured yet."

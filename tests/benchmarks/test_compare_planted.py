"""The benchmark of planted changes puts what was planted beside what was said."""

import json
from pathlib import Path

import pytest

from benchmarks.accuracy_trace import merge, write_rows
from benchmarks.compare_planted import row, sample, segments
from tests.benchmarks.test_accuracy import rows


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with the trace of a rank that is late by a quarter of a step."""
    one = segments(4, 1)[2]
    write_rows(tmp_path / f"{one.key}.csv", merge(one, rows(one, delay=0.025)))
    late = {str(step): 0.025 for step in range(one.healthy_steps, one.steps)}
    notes = {"commit": "abc", "delayed": {"0": late}}
    (tmp_path / f"{one.key}.json").write_text(json.dumps(notes))
    return tmp_path


def test_row_has_the_truth_and_what_was_said(traces: Path) -> None:
    """The delays that took effect are the true change."""
    found = row(segments(4, 1)[2], traces)

    assert found["true ratio"] == pytest.approx(1.25, abs=0.001)
    assert found["ratio"] == pytest.approx(1.25, abs=0.001)
    assert found["from"] <= 1.251
    assert (found["verdict"], found["late"]) == ("worse", "0 in data")


def test_sample_is_a_rank_that_was_mended(traces: Path) -> None:
    """It is the same trace, read backwards."""
    lines = sample(segments(4, 1)[2], traces).splitlines()

    assert lines[0] == "$ rankskew diagnose --trace ddp-4-1-data-25.csv --compare 306-604..5-304"
    assert lines[2].startswith("Steps take 0.800 times as long as before")
    assert lines[-1].endswith("no longer late.")

"""The benchmarks of `compare` draw what they say, and their intervals are honest."""

import json
import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from benchmarks.accuracy.trace import merge, write_rows
from benchmarks.compare_coverage import LATE, NOBODY, NOISE, STRAGGLERS, Straggler, run, step_times
from benchmarks.compare_planted import row, segments
from tests.benchmarks.test_accuracy import rows


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_step_times_depend_on_the_one_before(correlation: float) -> None:
    """Mean, spread and correlation of neighbours are those that are asked for."""
    times = step_times(random.Random(1), 20_000, correlation, NOBODY)
    away = [time - 1 for time in times]
    neighbours = sum(a * b for a, b in pairwise(away))

    assert fmean(times) == pytest.approx(1.0, abs=0.005)
    assert stdev(times) == pytest.approx(NOISE, rel=0.05)
    assert neighbours / sum(each**2 for each in away) == pytest.approx(correlation, abs=0.03)


@pytest.mark.parametrize("straggler", STRAGGLERS[1:])
def test_stragglers_come_and_go(straggler: Straggler) -> None:
    """A rank is late in a tenth or a fifth of the steps, for as long as it says."""
    times = step_times(random.Random(1), 50_000, 0.0, straggler)
    is_late = [time > 1 + LATE / 2 for time in times]
    begins = sum(b and not a for a, b in pairwise(is_late))

    assert fmean(is_late) == pytest.approx(straggler.mean / LATE, rel=0.1)
    assert sum(is_late) / begins == pytest.approx(straggler.late, rel=0.15)


def test_intervals_hold_the_truth_in_95_of_100_comparisons() -> None:
    """A smaller run of the benchmark, on step times that depend on each other."""
    row = run(300, 0.8, NOBODY, 1.0, repeats=300)

    assert row["interval holds the truth"] >= 0.92
    assert row["told worse"] <= 0.05
    assert row["refused"] <= 0.15


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
